-- worker_bury: declare a worker dead, if its counter is still the one that the observer saw stand still.
-- KEYS   workers   HASH    worker -> what it says of itself
--        beats     HASH    worker -> counter
--        pulses    ZSET    worker -> when it last beat, ms
--        buried    ZSET    worker -> until when somebody brings back its runs, ms
-- ARGV   clock, worker, counter, patience: for how many ms bringing back its runs is left to the caller
-- RETURN until when that is; 0: it has moved meanwhile, or somebody buried it before
-- USES   now
local beat = redis.call('HGET', beats, worker) or ''
if beat ~= counter or beat == '' and not redis.call('ZSCORE', pulses, worker) then return 0 end
redis.call('HDEL', beats, worker)
redis.call('HDEL', workers, worker)
redis.call('ZREM', pulses, worker)
redis.call('ZADD', buried, now + patience, worker)
return now + patience
