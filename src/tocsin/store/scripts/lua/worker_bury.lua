-- worker_bury: declare a worker dead, if its counter is still the one that the observer saw.
-- KEYS   workers, beats, pulses, buried
-- ARGV   clock, worker, counter, patience: for how many ms bringing back its runs is left to the caller
-- RETURN until when that is; 0: it has moved meanwhile, or somebody buried it before
--@include time
local now = read_time()
local beat = redis.call('HGET', beats, worker) or ''
if beat ~= counter or beat == '' and not redis.call('ZSCORE', pulses, worker) then return 0 end
redis.call('HDEL', beats, worker)
redis.call('HDEL', workers, worker)
redis.call('ZREM', pulses, worker)
redis.call('ZADD', buried, now + patience, worker)
return now + patience
