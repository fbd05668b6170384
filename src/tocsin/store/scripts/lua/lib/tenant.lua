-- tenant: the bytes of what is stored of the tenants of a fair queue: members of `ready`, states, claims.

-- A member of `ready` in a queue of order `fair`: tenant NUL due (13 digits) NUL place (4 digits) NUL id, all with
-- score 0, so that the jobs of a tenant stand together, in their order. `spots` has id -> band and all of that but the
-- id. spot.lua, tenant_audit.lua, turns.lua and job_page.lua take them apart.
local function ready_prefix(tenant, due, place)
  return tenant .. '\0' .. string.format('%013.0f', due) .. '\0' .. string.format('%04d', place)
end

-- Up to `most` of a tenant's members, behind the member `after` if it is given.
local function members_of_tenant(ready, tenant, after, most)
  local from = after and '(' .. after or '[' .. tenant .. '\0'
  return redis.call('ZRANGEBYLEX', ready, from, '(' .. tenant .. '\1', 'LIMIT', 0, most)
end

-- The bytes of an entry in `tenants`: how many of its runs count for its cap u32, the time up to which it has used its
-- rate double, the finish tag of its last job in each band double * 5. What an unknown tenant has need not be kept.
local TENANT_STATE = '>I4dddddd'

local function pack_state(state)
  local tags = state.tags
  return struct.pack(TENANT_STATE, state.active, state.rated, tags[0], tags[1], tags[2], tags[3], tags[4])
end

local function read_state(raw)
  local state = {active = 0, rated = 0, tags = {[0] = 0, 0, 0, 0, 0}}
  if raw and #raw == 52 then
    local tags = state.tags
    state.active, state.rated, tags[0], tags[1], tags[2], tags[3], tags[4] = struct.unpack(TENANT_STATE, raw)
    -- What is no number, or beyond any sum of costs, was not written by Tocsin.
    if not (state.rated < 1e300) then state.rated = 0 end
    for band = 0, 4 do
      if not (tags[band] < 1e300) then tags[band] = 0 end
    end
  end
  return state
end

-- The tenant for whose cap a claim counts, without taking it apart otherwise (claim.lua); nil for none.
local function tenant_of_claim(raw)
  local at = 25 + byte(raw, 24)
  local size = byte(raw, at) or 0
  return size > 0 and sub(raw, at + 2, at + size) or nil
end
