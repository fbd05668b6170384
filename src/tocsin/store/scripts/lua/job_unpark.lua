-- job_unpark: put a parked job back in line at its due time, so that any worker may try it again.
-- KEYS   meta, sessions, waiting, claims, parked, errors, events
-- ARGV   epoch, clock, session, seq, id
-- RETURN {1, code, head}: 0 not parked, 1 unparked
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include claim_intents
if not redis.call('ZSCORE', parked, id) then return unchanged(call, {1, 0, -1}) end
local claim = claim_if_readable(redis.call('HGET', claims, id)) or fresh_claim(now)
claim.intent = with_unread_times(claim.intent, 0)
leave(parked, id)
enter_line(id, claim.due, claim)
drop(errors, id)
if is_default_claim(claim) then drop(claims, id) else set(claims, id, write_claim(claim)) end
write_all()
return commit(call, {1, 1, claim.due}, 'unpark', {id})
