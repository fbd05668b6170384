-- repartition_waits: move entries of `watchers` or `outbox` between partitions: add those that arrive, remove those
--        that another partition has by now.
-- KEYS   meta, watchers, outbox
-- ARGV   move, key, arriving, leaving: watchers or outbox; msgpack [entry] * n each, at most 1000
-- RETURN 1 done, the same when it is repeated; 0 this move has not sealed the partition (nothing changed)
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
local zset = key == 'outbox' and outbox or watchers
local gone, scored = cmsgpack.unpack(leaving), {}
for _, entry in ipairs(cmsgpack.unpack(arriving)) do
  scored[#scored + 1] = 0
  scored[#scored + 1] = entry
end
if #gone > 0 then redis.call('ZREM', zset, unpack(gone)) end
if #scored > 0 then redis.call('ZADD', zset, unpack(scored)) end
return 1
