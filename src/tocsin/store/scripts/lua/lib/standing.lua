-- standing: whether a job stands in `ready`, and as it should. In a queue of order `due` none does.
local function is_ready(id) return false end
local function is_misplaced(id) return false end
