-- dependency_look: check whether blocked jobs will be notified when jobs of this partition end. Changes nothing.
-- KEYS   jobs, dead, results, watchers, outbox
-- ARGV   items: msgpack [upstream, watcher: queue NUL dependent NUL life] * n, at most 1000
-- RETURN a letter per item: . it will be notified; otherwise what dependency_watch would answer
--@include watching
local flat = cmsgpack.unpack(items)

-- A job that exists notifies its watchers when it ends; one that has ended, until its entry in the outbox is carried.
local function will_notify(upstream)
  if redis.call('HEXISTS', jobs, upstream) == 1 and not redis.call('ZSCORE', dead, upstream) then return true end
  return pending_end(upstream) ~= nil
end

local any_watchers = redis.call('EXISTS', watchers) == 1
local notifies, chances, codes = {}, {}, {}
for at = 1, #flat, 2 do
  local upstream = flat[at]
  if notifies[upstream] == nil then notifies[upstream] = any_watchers and will_notify(upstream) end
  if notifies[upstream] and redis.call('ZSCORE', watchers, upstream .. '\0' .. flat[at + 1]) then
    codes[#codes + 1] = '.'
  else
    chances[upstream] = chances[upstream] or chance_to_watch(upstream)
    codes[#codes + 1] = chances[upstream]
  end
end
return table.concat(codes)
