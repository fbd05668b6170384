-- moved_keys: as moved_keys_due.lua. Of a job in line only `spots` is carried; moved_jobs_fair.lua makes the rest from
-- it.
-- KEYS   spots
--@include moved_keys_due
local function moved_hashes() return hashes_of_jobs(spots) end
local function moved_zsets() return zsets_of_jobs() end
