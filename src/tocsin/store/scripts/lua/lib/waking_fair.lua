-- waking: give turns back to tenants that rest, because they are at their cap or ahead of their rate.
local function wake(names)
  for _, tenant in ipairs(names) do let_join(tenant) end
  return #names
end

-- Tenants whose rest is over. Whether there are any.
local function wake_rested()
  local woken = wake(redis.call('ZRANGEBYSCORE', resting, '-inf', now, 'LIMIT', 0, 1000))
  if redis.call('ZCARD', resting) > woken then
    -- A rest is no longer than a run takes of the rate. These are, because the clock went back since.
    local longest = math.ceil(now + (tonumber(redis.call('HGET', meta, 'tenant_every')) or 0)) + 1
    local beyond = string.format('(%.0f', longest)
    woken = woken + wake(redis.call('ZRANGEBYSCORE', resting, beyond, '(inf', 'LIMIT', 0, 1000))
  end
  return woken > 0
end

-- Tenants whose rest need not be over, at most so many. How many there were.
local function wake_resting(most) return wake(redis.call('ZRANGE', resting, 0, most - 1)) end
