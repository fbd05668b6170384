-- claim_entry_tenant: the tenant for whose cap a claim counts, without taking it apart otherwise; nil for none. The
-- layout is in claim.lua.
local function tenant_of_claim(raw)
  local at = 25 + byte(raw, 24)
  local size = byte(raw, at) or 0
  return size > 0 and sub(raw, at + 2, at + size) or nil
end
