-- standing_fair: as standing.lua.
local function is_ready(id) return redis.call('HEXISTS', spots, id) == 1 end
