-- moved_keys: as moved_keys_due.lua. The score in `ready` is where a job stands in line.
-- KEYS   ready0, ready1, ready2, ready3, ready4
--@include moved_keys_due
local function moved_hashes() return hashes_of_jobs() end
local function moved_zsets() return zsets_of_jobs(READY[0], READY[1], READY[2], READY[3], READY[4]) end
