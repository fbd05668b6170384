-- job_read: all that a partition has of some jobs, at one instant. Changes nothing.
-- KEYS   jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed, blocked, needs
-- ARGV   items: msgpack [id] * n, at most 1000
-- RETURN [[values of the first key]…]…: for each key, in the order of lib/moved_keys_due.lua, what it has for
--        each of the ids, nil for nothing; fewer ids than asked for if they are large: about 4 MiB
--@include moved_keys
local ids = cmsgpack.unpack(items)
local hashes, zsets = moved_hashes(), moved_zsets()
local columns, bytes = {}, 0
for i = 1, #hashes + #zsets do columns[i] = {} end

local function read(first, to)
  for i, hash in ipairs(hashes) do
    for n, value in ipairs(redis.call('HMGET', hash, unpack(ids, first, to))) do
      columns[i][first + n - 1] = value
      if value then bytes = bytes + #value end
    end
  end
  for i, zset in ipairs(zsets) do
    for n, score in ipairs(redis.call('ZMSCORE', zset, unpack(ids, first, to))) do
      columns[#hashes + i][first + n - 1] = score
    end
  end
end

-- A few at a time: a record may have half a megabyte.
for first = 1, #ids, 8 do
  if bytes >= 4 * 1024 * 1024 then break end
  read(first, math.min(first + 7, #ids))
end
return columns
