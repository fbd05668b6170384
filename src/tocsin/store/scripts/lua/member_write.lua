-- member_write: put jobs that another partition of the queue has into this one, as they stand there.
-- KEYS   meta      HASH    sealed
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        dead      ZSET    id -> since ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        blocked   ZSET    id -> not before ms
--        needs     HASH    id -> what it waits for
-- ARGV   now, move, items: msgpack [id, its values in the order of lib/members.lua, false for none] * n
-- RETURN 1 done, the same when it is repeated; 0 this move has not sealed the partition (nothing changed)
-- USES   records, claims, moves, line, members, places
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
now = tonumber(now)
local flat = cmsgpack.unpack(items)
local width = 1 + #HASHES + #ZSETS
for at = 1, #flat, width do
  local id, values = flat[at], {unpack(flat, at + 1, at + width - 1)}
  give_place(id, values)
  for i, hash in ipairs(HASHES) do
    if values[i] then set(hash, id, values[i]) end
  end
  for i, zset in ipairs(ZSETS) do
    if values[#HASHES + i] then enter(zset, values[#HASHES + i], id) end
  end
end
apply({jobs, results})
return 1
