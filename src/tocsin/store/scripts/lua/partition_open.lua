-- partition_open: create the partition, or say what it is. An existing one is never changed.
-- KEYS   meta
-- ARGV   epoch, order, partitions: what to create it with
-- RETURN {epoch, order, partitions, sealed}: as stored now
if redis.call('HEXISTS', meta, 'epoch') == 0 then
  -- The removal comes first, so that it passes on a full server.
  redis.call('HDEL', meta, 'epoch')
  redis.call('HSET', meta, 'epoch', epoch, 'order', order, 'partitions', partitions)
end
local stored = redis.call('HMGET', meta, 'epoch', 'order', 'partitions', 'sealed')
return {stored[1], stored[2], stored[3], stored[4] or ''}
