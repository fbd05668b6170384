-- run_extend: move the deadline of a claim, if the caller still holds it. Repeating it changes nothing.
-- KEYS   meta, sessions, working, claims, events
-- ARGV   epoch, clock, session, seq, owner, id, claim token, by ms
-- RETURN {1, deadline}: the new deadline, 0 if the claim was lost (nothing changed)
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include claim_fields
local claim = claim_if_readable(redis.call('HGET', claims, id))
if not claim or claim.token ~= tonumber(claim_token) or claim.owner ~= owner or claim.token == 0 then
  return unchanged(call, {1, 0})
end
local deadline = now + tonumber(by_ms)
-- A removal first: also on a full server a run must be able to keep its claim.
redis.call('HDEL', sessions, session)
redis.call('ZADD', working, 'XX', deadline, id)
return commit(call, {1, deadline}, 'extend', {id})
