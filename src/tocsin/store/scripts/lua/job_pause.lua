-- job_pause: set a job aside. One that is working is set aside when its run ends, one that is blocked when it is free.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        blocked   ZSET    id -> not before ms
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, id
-- RETURN {1, code}: 0 no such job, 1 paused, 2 will be paused when its run or wait ends, 3 left alone (dead or paused)
-- USES   call, records, claims, moves, line
if answered then return answered end
local raw = redis.call('HGET', claims, id)
local claim = claim_if_readable(raw)
local spot = spot_of(id)
local code
if spot then
  leave_line(id, spot)
  enter(paused, spot.score, id)
  if not claim then set(claims, id, write_claim(fresh_claim(spot.due, spot.place))) end
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
  claim = claim_at_work(raw)
  if has(claim.intent, REMOVE) then return unchanged({1, 0}) end
  claim.intent = with(claim.intent, PAUSE)
  set(claims, id, write_claim(claim))
  code = 2
else
  return unchanged({1, redis.call('HEXISTS', jobs, id) == 1 and 3 or 0})
end
apply()
return commit({1, code}, 'pause', {id})
