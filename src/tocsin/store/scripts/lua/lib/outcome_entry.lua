-- outcome_entry: read an entry of `results`. The layout is in outcome.lua.
--@include outcome

-- Whether what the job returned was kept; true if there is no entry.
local function is_kept(raw) return not raw or string.sub(raw, 10) ~= NOT_KEPT end
