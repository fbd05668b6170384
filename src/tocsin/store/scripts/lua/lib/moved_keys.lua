-- moved_keys: what is carried when jobs move to another partition: hashes and sorted sets that have something of each
-- job.
--@include members
local function moved_hashes() return hashes_of_jobs() end
local function moved_zsets() return zsets_of_jobs() end
