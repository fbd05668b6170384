-- member_remove: take jobs out of a partition that stand in another by now.
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
-- ARGV   now, move, items: msgpack [id] * n, at most 1000
-- RETURN 1 done, 0 this move has not sealed the partition (nothing changed)
-- USES   records, claims, moves, line, members, places
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
now = tonumber(now)
for _, id in ipairs(cmsgpack.unpack(items)) do
  take_place(id)
  for _, hash in ipairs(HASHES) do drop(hash, id) end
  for _, zset in ipairs(ZSETS) do leave(zset, id) end
end
-- With no session of ours to be removed first.
apply({})
return 1
