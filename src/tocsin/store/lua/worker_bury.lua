-- worker_bury: declare a worker dead, if its counter is still the one that the observer saw stand still.
-- KEYS   workers   HASH    worker -> what it says of itself
--        beats     HASH    worker -> counter
--        heard     HASH    worker -> when it last beat, ms
--        buried    ZSET    worker -> since ms
-- ARGV   clock, worker, counter
-- RETURN 1 buried, 0 it has moved meanwhile, or somebody buried it before
-- USES   now
if redis.call('HGET', beats, worker) ~= counter then return 0 end
redis.call('HDEL', beats, worker)
redis.call('HDEL', workers, worker)
redis.call('HDEL', heard, worker)
redis.call('ZADD', buried, now, worker)
return 1
