-- standing_priority: as standing.lua.
local function bands_of(id)
  local bands = 0
  for _, band in ipairs({ready0, ready1, ready2, ready3, ready4}) do
    if redis.call('ZSCORE', band, id) then bands = bands + 1 end
  end
  return bands
end

local function is_ready(id) return bands_of(id) > 0 end
-- In one band, not in two.
local function is_misplaced(id) return bands_of(id) > 1 end
