-- watch_look: whether those who wait for jobs of this partition will be told how these end. Changes nothing.
-- KEYS   jobs      HASH    id -> record
--        dead      ZSET    id -> since ms
--        results   HASH    id -> outcome
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
-- ARGV   items: msgpack [upstream, watcher: queue NUL dependent NUL life] * n, at most 1000
-- RETURN a letter per item: . it will be told; otherwise what job_watch would answer
-- USES   records, endings
local flat = cmsgpack.unpack(items)

-- Watchers of a job that is there are told when it ends, and those of one that has ended while its end is carried.
local function tells(upstream)
  if redis.call('HEXISTS', jobs, upstream) == 1 and not redis.call('ZSCORE', dead, upstream) then return true end
  return pending_end(upstream) ~= nil
end

local telling, chances, codes = {}, {}, {}
for at = 1, #flat, 2 do
  local upstream = flat[at]
  if telling[upstream] == nil then telling[upstream] = any_watchers and tells(upstream) end
  if telling[upstream] and redis.call('ZSCORE', watchers, upstream .. '\0' .. flat[at + 1]) then
    codes[#codes + 1] = '.'
  else
    chances[upstream] = chances[upstream] or chance_to_watch(upstream)
    codes[#codes + 1] = chances[upstream]
  end
end
return table.concat(codes)
