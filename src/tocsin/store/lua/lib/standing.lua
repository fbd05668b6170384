-- standing: whether a job stands in `ready`. In a queue of order `due` none does.
local function is_ready(id) return false end
