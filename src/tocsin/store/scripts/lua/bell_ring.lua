-- bell_ring: wake one idle worker of each queue, because a partition has work. A hint, never state; pushed only once.
--        Each key is the bell of a queue: a list of partitions with work.
-- KEYS   bells*
-- ARGV   items: msgpack, the partition for each of the bells
-- RETURN how many rang that were not ringing already
local rung = 0
for i, partition in ipairs(cmsgpack.unpack(items)) do
  -- A table is an error: somebody garbled the bell. The others ring.
  if not redis.pcall('LPOS', bells[i], partition) then
    -- Removes nothing, and comes first so that the push passes on a full server.
    redis.call('LREM', bells[i], 1, partition)
    redis.call('RPUSH', bells[i], partition)
    rung = rung + 1
  end
end
return rung
