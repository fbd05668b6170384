-- outcome_check: whether an entry of `results` is one. The layout is in outcome.lua.

-- The outcome that it begins with, which garbage may do with any number; nil for no entry and an empty one.
local function outcome_of(raw) return raw and string.byte(raw, 1) or nil end

local function is_outcome_entry(raw) return #raw >= 9 and outcome_of(raw) <= 3 end
