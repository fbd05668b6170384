-- claim_intents: what a person asked for while a job was working, and what stays of a claim after that.
-- The layout is in claim.lua. Apart from claim_fields.lua, because claims and heartbeats need only that one.
--@include claim_fields

-- Bits of the intent, with PUT: what a person asked for while the job was working. Finish, retry, release and recover
-- do that instead of what the worker asks for (apply_intent in settle.lua).
local PAUSE, REMOVE, CANCEL = 1, 2, 8

local function with(bits, bit) return has(bits, bit) and bits or bits + bit end
local function without(bits, bit) return has(bits, bit) and bits - bit or bits end

-- What stays of a claim when its holder lets go but the run has not ended.
local function release_claim(claim)
  claim.token, claim.owner, claim.tenant = 0, '', ''
  claim.intent = without(without(without(claim.intent, PAUSE), REMOVE), PUT)
  claim.put_due, claim.put_first, claim.put_record = nil, nil, nil
  return claim
end

-- The first tick of the job that has had no run: that of the claim, unless its run has ended.
local function first_owed(claim) return claim.attempt == 0 and claim.due + 1 or claim.due end

-- Such an entry says no more than a score in `waiting` does, so it need not be kept.
local function is_default_claim(claim)
  return claim.attempt == 1 and claim.recoveries == 0 and claim.intent == 0 and claim.place == 0
end

-- The claim of a run at work; a new one for the intents of a person if nobody can read it. The worker that holds it can
-- no longer end it; recovery brings it back at its deadline, and follows the intents.
local function claim_at_work(raw, now) return claim_if_readable(raw) or fresh_claim(now) end
