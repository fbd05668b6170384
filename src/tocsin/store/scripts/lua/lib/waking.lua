-- waking: as waking_fair.lua. Only fair queues have tenants that rest, so this does nothing.
local function wake_rested() return false end
local function wake_resting(most) return 0 end
