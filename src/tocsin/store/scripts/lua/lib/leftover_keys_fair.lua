-- leftover_keys: as leftover_keys.lua.
-- KEYS   ready0, ready1, ready2, ready3, ready4, turns0, turns1, turns2, turns3, turns4, tenants, resting
local function leftover_keys()
  local keys = {tenants, resting}
  for band = 0, 4 do keys[#keys + 1], keys[#keys + 2] = READY[band], TURNS[band] end
  return keys
end
