-- run_release: hand runs back unexecuted, at their due time or after a delay. It counts neither as an attempt nor as a
-- recovery.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, errors, done, results, unnamed, watchers, outbox,
--        events
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, delays in ms (0: at its due)
-- RETURN {1, lost, head, carry} as run_finish
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include settle_each
--@include requeue

local ids, tokens, delays = unpack(cmsgpack.unpack(items))

local held, lost = settle_each(ids, tokens, function(i, id, claim)
  local not_before = delays[i] > 0 and math.max(claim.due, now + delays[i]) or claim.due
  local verdict, put = apply_intent(id, claim, nil, 0, false, not_before)
  if verdict then return end
  if put then set(jobs, id, put) end
  requeue(id, claim, not_before, put)
end)
if #held == 0 then return nothing_held(lost) end
write_all()
return commit(call, {1, lost, head_or_apart(), call.carry}, 'release', held)
