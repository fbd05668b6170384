-- outcome_entry: read the entries of `results`. The layout is in outcome.lua.
-- Apart from that file, because the fast path of run_finish reads none.
--@include outcome

-- Whether what the job returned was kept; true if there is no entry.
local function is_kept(raw) return not raw or string.sub(raw, 10) ~= NOT_KEPT end

-- The outcome that it begins with, which garbage may do with any number; nil for no entry and an empty one.
local function outcome_of(raw) return raw and string.byte(raw, 1) or nil end

local function is_outcome_entry(raw) return #raw >= 9 and outcome_of(raw) <= 3 end
