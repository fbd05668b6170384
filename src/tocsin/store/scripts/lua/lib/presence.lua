-- presence: whether a job is in `ready`, and as it should be. In a queue of order `due` no job is.
local function is_ready(id) return false end
local function is_misplaced(id) return false end
