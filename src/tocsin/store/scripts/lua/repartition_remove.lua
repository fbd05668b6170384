-- repartition_remove: take jobs out of a partition that another partition has by now.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed,
--        blocked, needs
-- ARGV   now, move, items: msgpack [id] * n, at most 1000
-- RETURN 1 done, 0 this move has not sealed the partition (nothing changed)
-- Without a session: `move` is the repartitioning that must have sealed the partition, and its steps may be repeated.
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
local call = {now = tonumber(now), writes = {leaving = {}, entering = {}, setting = {}, dropping = {}}}
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include moved_keys
--@include moved_jobs
local hashes, zsets = moved_hashes(), moved_zsets()
for _, id in ipairs(cmsgpack.unpack(items)) do
  remove_from_order(id)
  for _, hash in ipairs(hashes) do drop(hash, id) end
  for _, zset in ipairs(zsets) do leave(zset, id) end
end
-- There is no answer of a session that could be removed first.
write_all({})
return 1
