-- tenant_state: the bytes of an entry in `tenants`: how many of its runs count for its cap u32, the time up to which it
-- has used its rate double, the finish tag of its last job in each band double * 5. What an unknown tenant has need not
-- be kept.
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
