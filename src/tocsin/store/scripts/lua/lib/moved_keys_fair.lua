-- moved_keys: as moved_keys.lua. Of a job in line only `spots` is carried; moved_jobs_fair.lua makes the rest from it.
-- KEYS   spots
--@include members
local function moved_hashes() return hashes_of_jobs(spots) end
local function moved_zsets() return zsets_of_jobs() end
