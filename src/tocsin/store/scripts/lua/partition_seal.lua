-- partition_seal: let only this move change a partition from now on; create the partition if there is none.
-- KEYS   meta
-- ARGV   move, expected, order, partitions: the epoch it is believed to have, '' for none; what to create it with
-- RETURN 1 it is sealed by this move, 0 it is another partition than the caller believes (nothing changed)
local stored = redis.call('HMGET', meta, 'epoch', 'sealed')
if stored[2] == move then return 1 end
if (stored[1] or '') ~= expected then return 0 end
-- The removal comes first, so that it passes on a full server.
redis.call('HDEL', meta, 'sealed')
if not stored[1] then redis.call('HSET', meta, 'epoch', 'new ' .. move, 'order', order, 'partitions', partitions) end
redis.call('HSET', meta, 'sealed', move)
return 1
