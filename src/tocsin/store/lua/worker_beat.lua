-- worker_beat: raise a worker's counter, so that the others see it alive, and see theirs.
-- KEYS   workers   HASH    worker -> what it says of itself
--        beats     HASH    worker -> counter
--        heard     HASH    worker -> when it last beat, ms
--        buried    ZSET    worker -> since ms: whose claims are still to be brought back
-- ARGV   clock, worker, counter, about, joins: '1' for the first beat of a worker, '' for all others
-- RETURN {1, now, [worker, counter]…, [buried]…}; {0, now}: this worker was buried, or the server forgot it
-- USES   now
if redis.call('ZSCORE', buried, worker) then return {0, now} end
if joins == '' and redis.call('HEXISTS', beats, worker) == 0 then return {0, now} end
-- The removal comes first, so that it passes on a full server: a worker that cannot beat may not claim either, and
-- nobody would run what fills the memory.
redis.call('HDEL', heard, worker)
redis.call('HSET', beats, worker, counter)
redis.call('HSET', heard, worker, string.format('%.0f', now))
redis.call('HSET', workers, worker, about)
return {1, now, redis.call('HGETALL', beats), redis.call('ZRANGE', buried, 0, 99)}
