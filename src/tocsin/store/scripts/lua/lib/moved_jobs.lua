-- moved_jobs: add jobs that are carried from another partition to the order of the queue, and remove them from it.
-- The keys that are carried (moved_keys_due.lua) say all but in queues of order `fair`, so this does nothing.
local function add_to_order(id, values) end
local function remove_from_order(id) end
