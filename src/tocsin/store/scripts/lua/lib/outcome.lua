-- outcome: how a run ended, and the entry of `results` that remembers it: outcome u8, time u64, msgpack of what the job
-- returned. Only this file, outcome_entry.lua and remember.lua count its bytes. Apart from those, because most
-- scripts need the numbers alone.
local FAILED, SUCCEEDED, SKIPPED, CANCELLED = 0, 1, 2, 3

-- In `results` in place of what a job returned, where it is remembered only because others wait for it, or where what
-- it returned was lost; then a text behind it says why. No msgpack begins with this byte.
local NOT_KEPT = '\193'
