-- standing_priority: as standing.lua.
local function is_ready(id)
  for _, band in ipairs({ready0, ready1, ready2, ready3, ready4}) do
    if redis.call('ZSCORE', band, id) then return true end
  end
  return false
end
