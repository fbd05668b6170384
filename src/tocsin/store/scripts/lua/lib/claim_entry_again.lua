-- claim_entry_again: read and pack the entries of runs that were claimed before, or that count for a tenant's cap. The
-- layout is in claim.lua.
--@include claim_entry_new

-- Whether this is a claim at all, without taking it apart.
local function is_claim(raw)
  local owner_size = raw and #raw >= 25 and byte(raw, 24)
  return owner_size and #raw >= 25 + owner_size + (byte(raw, 25 + owner_size) or 255)
end

-- A run that was recovered twice may be what kills workers (score.lua).
local function is_suspect(raw) return byte(raw, 21) > 0 or byte(raw, 22) > 1 end

local function packed_tenant(tenant) return string.char(#tenant + 1) .. '=' .. tenant end

-- The claim that takes over where `raw` ended, or begins at `due` and `place`; `tenant` packed, if it counts for one.
local function claim_again(batch, raw, tenant)
  return batch.token_bytes .. sub(raw, STAMP_FROM, STAMP_TO) .. batch.owner_bytes .. (tenant or NO_TENANT)
end

local function new_claim_for(batch, due, place, tenant)
  if not tenant then return new_claim(batch, due, place) end
  return batch.token_bytes .. struct.pack('>I2I6', place, due) .. NEVER_CLAIMED .. batch.owner_bytes .. tenant
end
