-- shares: how many runs of each tenant are worked on, counted from the claims. Beyond so many runs nobody counts: it
-- would hold the server for too long.
local MOST_COUNTED = 5000

-- tenant -> runs; nil if there are too many to count.
local function runs_by_tenant()
  local count = {}
  if redis.call('ZCARD', working) > MOST_COUNTED then return nil end
  local ids = redis.call('ZRANGE', working, 0, -1)
  for first = 1, #ids, 1000 do
    local raws = redis.call('HMGET', claims, unpack(ids, first, math.min(first + 999, #ids)))
    for _, raw in ipairs(raws) do
      local fine, tenant = pcall(tenant_of_claim, raw)
      -- Those that count for a cap.
      local name = fine and string.sub(tenant, 2)
      if fine and tenant ~= '' then count[name] = (count[name] or 0) + 1 end
    end
  end
  return count
end

-- What a member of `ready` says: tenant, due, place, id; nil if it is none of ours.
local function parts_of(member) return string.match(member, '^([^%z]*)%z(%d%d%d%d%d%d%d%d%d%d%d%d%d)%z(%d+)%z(.+)$') end

local function spot_at(band, tenant, due, place) return band .. tenant .. '\0' .. due .. '\0' .. place end

local function has_work(tenant, key)
  return #redis.call('ZRANGEBYLEX', key, '[' .. tenant .. '\0', '(' .. tenant .. '\1', 'LIMIT', 0, 1) > 0
end

-- At its cap, nobody wakes a tenant that has no runs to end.
local function rests_in_vain(till, runs, cap) return till == 'inf' and runs and (not cap or runs < cap) end
