-- repartition_join: add the counters of a partition that will be no more to those of this one, once.
-- KEYS   meta
-- ARGV   move, partition, counts: msgpack [counter, number] * n
-- RETURN 1 done, now or before; 0 this move has not sealed it (nothing changed)
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
if redis.call('HSETNX', meta, 'joined:' .. partition, 1) == 1 then
  local flat = cmsgpack.unpack(counts)
  for at = 1, #flat, 2 do
    -- A counter that somebody garbled begins anew.
    local counted = redis.pcall('HINCRBY', meta, flat[at], flat[at + 1])
    if type(counted) == 'table' then redis.call('HSET', meta, flat[at], flat[at + 1]) end
  end
end
return 1
