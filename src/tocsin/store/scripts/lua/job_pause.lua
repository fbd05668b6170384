-- job_pause: set a job aside. One that is working is set aside when its run ends, one that is blocked when it is free.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, blocked, events
-- ARGV   epoch, clock, session, seq, id
-- RETURN {1, code}: 0 no such job, 1 paused, 2 will be paused when its run or wait ends, 3 left alone (dead or paused)
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include line_entry
--@include claim_intents
local raw = redis.call('HGET', claims, id)
local claim = claim_if_readable(raw)
local entry = line_entry_of(id)
local code
if entry then
  leave_line(id, entry)
  enter(paused, entry.score, id)
  if not claim then set(claims, id, write_claim(fresh_claim(entry.due, entry.place))) end
  code = 1
elseif redis.call('ZSCORE', parked, id) then
  leave(parked, id)
  enter(paused, claim and string.format('%.0f', claim.due) or now, id)
  if not claim then set(claims, id, write_claim(fresh_claim(now))) end
  code = 1
elseif redis.call('ZSCORE', blocked, id) then
  claim = claim or fresh_claim(tonumber(redis.call('ZSCORE', blocked, id)))
  claim.intent = with(claim.intent, PAUSE)
  set(claims, id, write_claim(claim))
  code = 2
elseif redis.call('ZSCORE', working, id) then
  claim = claim_at_work(raw, now)
  if has(claim.intent, REMOVE) then return unchanged(call, {1, 0}) end
  claim.intent = with(claim.intent, PAUSE)
  set(claims, id, write_claim(claim))
  code = 2
else
  return unchanged(call, {1, redis.call('HEXISTS', jobs, id) == 1 and 3 or 0})
end
write_all()
return commit(call, {1, code}, 'pause', {id})
