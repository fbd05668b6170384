-- partition_delete: delete a sealed partition that has no jobs, with all that it remembers.
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
--        ready0    ZSET    what is ready, by band
--        ready1    ZSET    likewise
--        ready2    ZSET    likewise
--        ready3    ZSET    likewise
--        ready4    ZSET    likewise
--        turns0    ZSET    tenant -> start tag, by band
--        turns1    ZSET    likewise
--        turns2    ZSET    likewise
--        turns3    ZSET    likewise
--        turns4    ZSET    likewise
--        tenants   HASH    tenant -> its runs, its rate's time, its finish tags
--        spots     HASH    id -> where it stands in `ready`
--        resting   ZSET    tenant at its cap, or ahead of its rate -> until ms
-- ARGV   move
-- RETURN 1 deleted, now or before; 0 it is not sealed in this name, or has jobs (nothing changed)
if redis.call('EXISTS', meta) == 0 then return 1 end
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
if redis.call('EXISTS', jobs, waiting, working, paused, parked, dead, blocked, ready0, ready1, ready2, ready3, ready4) > 0 then
  return 0
end
-- UNLINK: what is remembered may be large, and is freed beside the server's work.
redis.call('UNLINK', meta, sessions, claims, errors, done, results, unnamed, needs, watchers, outbox, events, weights,
  turns0, turns1, turns2, turns3, turns4, tenants, spots, resting)
return 1
