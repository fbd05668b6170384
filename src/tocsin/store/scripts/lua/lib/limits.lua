-- limits: how many runs a queue may start now, by its cap and its rate (pace.lua). `cap` is one of the caller's own: the
-- lower of the two holds. What the queue says is in `given` (take.lua).
local max_active, capped_since = tonumber(given[4]), tonumber(given[5])
if (cap or '') ~= '' then max_active = math.min(max_active or math.huge, tonumber(cap)) end
local every, burst, spent = rate()
local full, wait_until = false, nil

-- How many of those wanted may start, besides the `started`. If none: `full`, or `wait_until` when one may.
local function allowed(wanted, started)
  full, wait_until = false, nil
  if max_active then
    wanted = math.min(wanted, max_active - redis.call('ZCARD', working) - (started or 0))
    full = wanted <= 0
  end
  if every and not full then
    wanted = math.min(wanted, math.floor((now + burst + every - spent + 0.001) / every))
    if wanted <= 0 then wait_until = math.max(math.ceil(spent - burst), now + 1) end
  end
  return math.max(wanted, 0)
end

-- How many were started, and whether some in line could be, but for the limits: since when these keep any back is kept.
local function count_started(started, any_left)
  if every and started > 0 then
    spent = spent + started * every
    set(meta, 'spent', string.format('%.3f', spent))
  end
  allowed(1, started)
  local kept_back = (full or wait_until) and any_left()
  if kept_back and not capped_since then set(meta, 'capped', string.format('%.0f', now)) end
  if not kept_back and capped_since then drop(meta, 'capped') end
end
