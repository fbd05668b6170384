-- partition_drop: delete a partition that a move has emptied.
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
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
--        weights   HASH    tenant -> weight
-- ARGV   move
-- RETURN 1 deleted, now or before; 0 this move has not sealed it, or something is left in it (nothing changed)
-- USES   members, places
if redis.call('EXISTS', meta) == 0 then return 1 end
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
for _, keys in ipairs({HASHES, ZSETS, {watchers, outbox}}) do
  for _, key in ipairs(keys) do
    if redis.call('EXISTS', key) == 1 then return 0 end
  end
end
redis.call('DEL', meta, sessions, events, weights, unpack(LEFTOVERS))
return 1
