-- moved_jobs: what the order of the queue has of a job besides the keys that are carried (moved_keys_due.lua).
-- Only queues of order `fair` have such.
local function add_to_order(id, values) end
local function remove_from_order(id) end
