-- job_revive: give dead jobs another life: the same run, its attempts counted anew, now.
-- KEYS   meta, sessions, waiting, claims, dead, events
-- ARGV   epoch, clock, session, seq, items: msgpack [id] * n
-- RETURN {1, codes, head}: a digit per id: 0 not dead, 1 revived
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include claim_fields
local codes, revived = {}, {}
for i, id in ipairs(cmsgpack.unpack(items)) do
  codes[i] = '0'
  if redis.call('ZSCORE', dead, id) then
    local before = claim_if_readable(redis.call('HGET', claims, id))
    local claim = fresh_claim(before and before.due or now)
    leave(dead, id)
    enter_line(id, now, claim)
    set(claims, id, write_claim(claim))
    revived[#revived + 1] = id
    codes[i] = '1'
  end
end
local reply = {1, table.concat(codes), #revived > 0 and now or -1}
if #revived == 0 then return unchanged(call, reply) end
write_all()
return commit(call, reply, 'revive', revived)
