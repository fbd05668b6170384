-- job_park: set aside jobs that have been due for so long that nobody runs them. A worker that names them finds them there.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        claims    HASH    id -> claim
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, overdue, items: msgpack [id] * n, at most 1000
--        overdue: how many ms they must have been due
-- RETURN {1, codes}: a digit per id: 0 left alone, 1 parked
-- USES   call, records, claims, moves
if answered then return answered end
local before, codes, aside = now - tonumber(overdue), {}, {}
for i, id in ipairs(cmsgpack.unpack(items)) do
  local score = tonumber(redis.call('ZSCORE', waiting, id) or nil)
  local record = score and score <= before and redis.call('HGET', jobs, id)
  codes[i] = '0'
  if readable(record) then
    codes[i] = '1'
    aside[#aside + 1] = id
    leave(waiting, id)
    enter(parked, handler_of(record), id)
    if not claim_if_readable(redis.call('HGET', claims, id)) then
      local due = math.max(math.floor(score), 0)
      -- What is below the millisecond is the place, see claims.lua.
      set(claims, id, write_claim(fresh_claim(due, math.max(score - due, 0) * 4096)))
    end
  end
end
local reply = {1, table.concat(codes)}
if #aside == 0 then return unchanged(reply) end
apply()
return commit(reply, 'park', aside)
