-- bell_ring: tell one idle worker that a partition has work. A hint, never state; pushed only once.
-- KEYS   bell      LIST    partitions with work
-- ARGV   partition
-- RETURN 1 rung, 0 it was ringing already
if redis.call('LPOS', bell, partition) then return 0 end
redis.call('RPUSH', bell, partition)
return 1
