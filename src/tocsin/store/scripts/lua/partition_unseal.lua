-- partition_unseal: open a partition that a move has sealed, under the epoch and as one of as many as given here.
-- KEYS   meta
-- ARGV   move, epoch, partitions
-- RETURN 1 opened, 0 this move has not sealed it, or has opened it before (nothing changed)
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
for _, field in ipairs(redis.call('HKEYS', meta)) do
  if string.find(field, '^joined:') then redis.call('HDEL', meta, field) end
end
redis.call('HDEL', meta, 'sealed')
redis.call('HSET', meta, 'epoch', epoch, 'partitions', partitions)
return 1
