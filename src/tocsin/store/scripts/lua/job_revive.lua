-- job_revive: give dead jobs another life: the same run, its attempts counted anew, now.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        waiting   ZSET    id -> not before ms
--        claims    HASH    id -> claim
--        dead      ZSET    id -> since ms
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, items: msgpack [id] * n
-- RETURN {1, codes, head}: a digit per id: 0 not dead, 1 revived
-- USES   call, records, claims, moves, line
if answered then return answered end
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
if #revived == 0 then return unchanged(reply) end
apply()
return commit(reply, 'revive', revived)
