-- tenant_audit: check whether the tenants of a fair queue have the turns and the number of runs that its jobs say.
--@include tenant

-- Members of `ready`; tenant.lua has their layout.
-- Tenant, due, place, id, as text; nothing for what Tocsin did not write.
local function parts_of_member(member)
  return string.match(member, '^([^%z]*)%z(%d%d%d%d%d%d%d%d%d%d%d%d%d)%z(%d+)%z(.+)$')
end

-- The entry of `spots` that belongs to it.
local function spot_text(band, tenant, due, place) return band .. tenant .. '\0' .. due .. '\0' .. place end

-- Tenant -> runs, counted from the claims; nil if more runs are at work than may be counted without holding up the
-- server.
local function runs_by_tenant()
  local count = {}
  if redis.call('ZCARD', working) > 5000 then return nil end
  local ids = redis.call('ZRANGE', working, 0, -1)
  for first = 1, #ids, 1000 do
    local raws = redis.call('HMGET', claims, unpack(ids, first, math.min(first + 999, #ids)))
    for _, raw in ipairs(raws) do
      local fine, tenant = pcall(tenant_of_claim, raw)
      if fine and tenant then count[tenant] = (count[tenant] or 0) + 1 end
    end
  end
  return count
end

local function has_work(tenant, ready) return #members_of_tenant(ready, tenant, nil, 1) > 0 end

-- A tenant at its cap wakes when one of its runs ends, so without runs it would rest for ever.
local function rests_in_vain(till, runs, cap) return till == 'inf' and runs and (not cap or runs < cap) end
