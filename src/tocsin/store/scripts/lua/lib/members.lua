-- members: the keys that have something of each job, and what the order of the queue adds to them. A repartitioning
-- carries the values of each key from one partition to another, in this order; store/transitions/jobs.py reads them.
local function hashes_of_jobs(...) return {jobs, claims, errors, results, needs, ...} end
local function zsets_of_jobs(...) return {waiting, working, paused, parked, dead, done, blocked, unnamed, ...} end
