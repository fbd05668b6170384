-- claim: the bytes of an entry in `claims`. Only this file, the others whose names begin with `claim`, and tenant.lua
-- count them. The numbers are where each field begins.
--    1 token u64     9 place u16     11 due u48     17 attempt u32     21 recoveries u16     23 intent u8
--   24 size of the owner, the owner, size of the tenant, the tenant
--   Where an edit waits for the end of the run: intended due u64, first intended due u64, the intended record.
-- Token 0 and no owner: no worker holds it; the entry keeps due and attempt of a run that has not ended.
-- Place: the order among jobs that entered the line in the same millisecond. In a queue of order `due` its first byte
--   is the number of successes that the record does not count yet (order_due.lua).
-- Attempt 0: the run has ended, but its worker could not tell when the job is due next (run_park). It is not run
--   again: the worker that claims it says when the job goes on (run_advance).
-- Intent: what to do at the end of the run instead of what the worker asks for (claim_intents.lua). The bits
--   above count how often a worker could not read the record of this run.
-- Tenant: '=' and the tenant for whose cap the run counts; empty if it counts for none.
-- Intended due: edits may follow each other in one run. The cadence that its worker knows ends at the first.

-- The first byte of the place.
local UNCOUNTED_AT = 9
-- What a claim returns to the worker, its stamp: place, due, attempt, recoveries, intent. An event has the first three.
local STAMP_FROM, STAMP_TO, RUN_FROM, RUN_TO = 9, 23, 9, 20
-- A claim without an intent that belongs to `owner` has, from here on: the byte 0, the owner's size, the owner.
local INTENT_AT = 23
