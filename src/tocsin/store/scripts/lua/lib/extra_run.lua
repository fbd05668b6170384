-- extra_run: ids of extra runs (parent.lua).
local function extra_run_id(id, due) return id .. '\31' .. string.format('%.0f', due) end
local function sole_run_id(id) return id .. '\31' .. '0' end
