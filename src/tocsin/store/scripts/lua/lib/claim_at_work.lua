-- claim_at_work: the claim of a job that is working, for the intents of a person.
--@include claim_entry_intents

-- The claim of a run at work; a new one for the intents of a person if nobody can read it. The worker that holds it can
-- no longer end it; recovery brings it back at its deadline, and follows the intents.
local function claim_at_work(raw, now) return claim_if_readable(raw) or fresh_claim(now) end
