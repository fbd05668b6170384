-- run_claim_ordered: as run_claim, for queues of order `priority` or `fair`.
-- ORDERS priority, fair
-- KEYS   meta, sessions, jobs, waiting, working, claims, parked, events
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, suspects, repeated, limit, cap, unread
-- RETURN as run_claim
--@include session
local call = begin_call()
if call.refused then return call.refused end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include limits
--@include claim_batch
--@include claim_again
local batch = begin_batch()
local limits = begin_limits(batch, cap ~= '' and cap or nil)

local function with_rest(reply, since)
  local left, next_due = ready_count(), head()
  local _, any_apart = first_waiting(waiting)
  if limits.full or limits.wait_until then
    next_due, left = limits.wait_until or -1, 0
  elseif any_apart and (next_due < 0 or next_due > now + 100) then
    -- The worker asks again when the suspect that it tries may have ended.
    next_due = now + 100
  end
  reply[7], reply[9] = next_due, left
  if since >= 0 then reply[10], reply[11] = {}, since end
  return reply
end

if call.answered then
  allowed(limits, 1)
  return with_rest(repeat_reply(unpack(call.answered)), call.answered[5])
end
local refused = refusal(batch)
if refused then return refused end

limit = allowed(limits, math.min(tonumber(limit), 1000))
do
  --@include promote
  promote(batch, math.min(batch.suspects_left, limit))
end
local not_in_line = batch.parked
if limit > 0 then
  --@include claim_order
  claim_in_order(batch, limit)
end
local since = batch.capped_since or -1
count_started(limits, #batch.ids, function()
  return ready_count() > #batch.ids + batch.parked - not_in_line + batch.sent_apart
end)
return with_rest(finish_claims(batch, since), since)
