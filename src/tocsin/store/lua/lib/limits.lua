-- limits: how many runs a queue may start now, by its cap and its rate. The rate is spent as in the generic cell rate
-- algorithm: `spent` is the time up to which it is used, `burst` how many ms that may be ahead of now. `cap` is one of
-- the caller's own: the lower of the two holds.
local given = redis.call('HMGET', meta, 'paused', 'max_active', 'every', 'burst', 'spent', 'capped')
local max_active, every, burst = tonumber(given[2]), tonumber(given[3]), tonumber(given[4]) or 0
if cap then max_active = math.min(max_active or math.huge, tonumber(cap)) end
local spent = math.max(tonumber(given[5]) or 0, now)
local paused_now, full, wait_until = given[1], false, nil

local function allowed(wanted)
  if max_active then
    wanted = math.min(wanted, max_active - redis.call('ZCARD', working))
    full = wanted <= 0
  end
  if every then
    wanted = math.min(wanted, math.floor((now + burst + every - spent) / every + 0.000001))
    if wanted <= 0 and not full then wait_until = math.max(math.ceil(spent - burst), now + 1) end
  end
  return math.max(wanted, 0)
end

-- What was started, and whether the limits keep back some that could start otherwise; since when they do is kept.
local function count_started(started, kept_back)
  if every and started > 0 then set(meta, 'spent', string.format('%.3f', spent + started * every)) end
  if kept_back and not given[6] then set(meta, 'capped', string.format('%.0f', now)) end
  if not kept_back and given[6] then drop(meta, 'capped') end
end
