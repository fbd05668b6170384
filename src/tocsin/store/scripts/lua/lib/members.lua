-- members: all that a partition has of a job, by key. Other orders than `due` have more, see lib/places_*.lua.
-- Python carries the values of each from one partition to another, in this order; store/views/jobs.py reads them.
local HASHES = {jobs, claims, errors, results, needs}
local ZSETS = {waiting, working, paused, parked, dead, done, blocked, unnamed}
