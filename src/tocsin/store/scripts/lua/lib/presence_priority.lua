-- presence: as presence.lua.
-- KEYS   ready0, ready1, ready2, ready3, ready4
local function bands_with(id)
  local bands = 0
  for band = 0, 4 do
    if redis.call('ZSCORE', READY[band], id) then bands = bands + 1 end
  end
  return bands
end

local function is_ready(id) return bands_with(id) > 0 end
-- Whether it is in more than one band.
local function is_misplaced(id) return bands_with(id) > 1 end
