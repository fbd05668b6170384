-- partition_open: create the partition, or say what it is. An existing one is never changed.
-- KEYS   meta      HASH    epoch, order, partitions
-- ARGV   epoch, order, partitions: what to create it with
-- RETURN {epoch, order, partitions, sealed}: as stored now
if redis.call('HSETNX', meta, 'epoch', epoch) == 1 then
  redis.call('HSET', meta, 'order', order, 'partitions', partitions)
end
local stored = redis.call('HMGET', meta, 'epoch', 'order', 'partitions', 'sealed')
return {stored[1], stored[2], stored[3], stored[4] or ''}
