-- claim_entry_new: pack the entries of a batch of claims that one worker takes. The layout is in claim.lua.
--@include claim
-- First attempt, no recoveries, no intent; then, behind the owner, no tenant.
local NEVER_CLAIMED, NO_TENANT = '\0\0\0\1\0\0\0', '\0'

-- `batch` keeps what all of its claims have in common.
local function begin_claims(batch)
  batch.token_bytes = struct.pack('>I8', call.token)
  batch.owner_bytes = string.char(#owner) .. owner
  batch.never_claimed = NEVER_CLAIMED .. batch.owner_bytes .. NO_TENANT
end

-- Of a run that was never claimed before. Such claims differ in their due time and place only.
local function new_claim(batch, due, place)
  return batch.token_bytes .. struct.pack('>I2I6', place, due) .. batch.never_claimed
end
