-- repartition_write: put jobs that another partition of the queue has into this one, unchanged.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed,
--        blocked, needs
-- ARGV   now, move, items: msgpack [id, its values in the order of lib/moved_keys_due.lua, false for none] * n
-- RETURN 1 done, the same when it is repeated; 0 this move has not sealed the partition (nothing changed)
-- Without a session: `move` is the repartitioning that must have sealed the partition, and its steps may be repeated.
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
local call = {now = tonumber(now), writes = {leaving = {}, entering = {}, setting = {}, dropping = {}}}
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include moved_keys
--@include moved_jobs
local hashes, zsets = moved_hashes(), moved_zsets()
local flat = cmsgpack.unpack(items)
local width = 1 + #hashes + #zsets
for at = 1, #flat, width do
  local id, values = flat[at], {unpack(flat, at + 1, at + width - 1)}
  add_to_order(id, values)
  for i, hash in ipairs(hashes) do
    if values[i] then set(hash, id, values[i]) end
  end
  for i, zset in ipairs(zsets) do
    if values[#hashes + i] then enter(zset, values[#hashes + i], id) end
  end
end
write_all({jobs, results})
return 1
