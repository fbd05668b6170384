-- limits: work out how many runs a queue may start now, by its cap and its rate (rate.lua).
--@include rate

-- `own_cap` is a cap of the caller's own, or nil: the lower of the two holds.
local function begin_limits(batch, own_cap)
  local limits = {max_active = batch.max_active, capped_since = batch.capped_since}
  limits.every, limits.burst = call.every, call.burst
  if own_cap then limits.max_active = math.min(limits.max_active or math.huge, tonumber(own_cap)) end
  limits.spent = limits.every and spent_by(limits.every, limits.burst, call.spent)
  return limits
end

-- How many of those wanted may start, besides the `started`. If none, `full` is set, or `wait_until` to when one may.
local function allowed(limits, wanted, started)
  limits.full, limits.wait_until = false, nil
  if limits.max_active then
    wanted = math.min(wanted, limits.max_active - redis.call('ZCARD', working) - (started or 0))
    limits.full = wanted <= 0
  end
  local every, burst, spent = limits.every, limits.burst, limits.spent
  if every and not limits.full then
    wanted = math.min(wanted, math.floor((now + burst + every - spent + 0.001) / every))
    if wanted <= 0 then limits.wait_until = math.max(math.ceil(spent - burst), now + 1) end
  end
  return math.max(wanted, 0)
end

-- Spend the rate for the runs that were started. `meta` keeps since when the limits hold jobs back; `any_left` says
-- whether others could start but for them.
local function count_started(limits, started, any_left)
  if limits.every and started > 0 then
    limits.spent = limits.spent + started * limits.every
    set(meta, 'spent', string.format('%.3f', limits.spent))
  end
  allowed(limits, 1, started)
  local holds_back = (limits.full or limits.wait_until) and any_left()
  if holds_back and not limits.capped_since then set(meta, 'capped', string.format('%.0f', now)) end
  if not holds_back and limits.capped_since then drop(meta, 'capped') end
end
