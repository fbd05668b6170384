-- job_park: park jobs that no worker has run although they have been due for long. A worker with their handler finds
--        them there.
-- ORDERS due
-- KEYS   meta, sessions, jobs, waiting, claims, parked, events
-- ARGV   epoch, clock, session, seq, overdue, items: msgpack [id] * n, at most 1000
--        overdue: how many ms they must have been due
-- RETURN {1, codes}: a digit per id: 0 left alone, 1 parked
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include record_claim
--@include claim_fields
--@include score_parts
local before, codes, aside = now - tonumber(overdue), {}, {}
for i, id in ipairs(cmsgpack.unpack(items)) do
  local score = tonumber(redis.call('ZSCORE', waiting, id) or nil)
  local record = score and score <= before and redis.call('HGET', jobs, id)
  codes[i] = '0'
  if is_readable(record) then
    codes[i] = '1'
    aside[#aside + 1] = id
    leave(waiting, id)
    enter(parked, handler_of(record), id)
    if not claim_if_readable(redis.call('HGET', claims, id)) then
      set(claims, id, write_claim(fresh_claim(due_and_place(score))))
    end
  end
end
local reply = {1, table.concat(codes)}
if #aside == 0 then return unchanged(call, reply) end
apply()
return commit(call, reply, 'park', aside)
