-- claim_entry_read: single fields of a claim, for readers that need no more. The layout is in claim.lua.

-- 0 for a missing entry and for one that is too short for a claim.
local function token_of_claim(raw) return raw and #raw >= 25 and struct.unpack('>I8', raw) or 0 end

-- Nothing for a missing entry and for one that is too short to say.
local function due_of_claim(raw) return raw and #raw >= 16 and struct.unpack('>I6', raw, 11) or nil end
