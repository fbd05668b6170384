-- moved_keys: the keys that have something of each job, which a repartitioning carries from one partition to another.
-- It carries the values in this order; store/views/jobs.py reads them. moved_keys_priority.lua and
-- moved_keys_fair.lua include this file, and define the last two functions anew with the keys of their order.
local function hashes_of_jobs(...) return {jobs, claims, errors, results, needs, ...} end
local function zsets_of_jobs(...) return {waiting, working, paused, parked, dead, done, blocked, unnamed, ...} end
local function moved_hashes() return hashes_of_jobs() end
local function moved_zsets() return zsets_of_jobs() end
