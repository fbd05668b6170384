-- claim_fields: read, change and write entries of `claims`. The layout is in claim.lua.
--@include claim

-- An edit waits in the claim (claim_intents.lua).
local PUT = 4

local function has(bits, bit) return math.floor(bits / bit) % 2 == 1 end

local function unread_times(bits) return math.floor(bits / 16) end
local function with_unread_times(bits, times) return bits % 16 + math.min(times, 15) * 16 end

-- When the next worker may try to read a record that so many could not: another worker may have the package, the zone
-- or the version that this one lacks. After 1 s, 2 s, and so on up to 256 s. As a number that is more than any digest.
local function read_again_at(now, times) return now + 1000 * 2 ^ math.min(times - 1, 8) end

-- Raises for garbage.
local function read_claim(raw)
  local claim = {}
  local at
  claim.token, claim.place, claim.due, claim.attempt, claim.recoveries, claim.intent, claim.owner, claim.tenant, at =
    struct.unpack('>I8I2I6I4I2BBc0Bc0', raw)
  if has(claim.intent, PUT) then
    claim.put_due, claim.put_first = struct.unpack('>I8I8', raw, at)
    claim.put_record = string.sub(raw, at + 16)
  end
  return claim
end

-- Nothing for a missing entry and for garbage: one bad entry must not stop a script that has others to deal with. The
-- second result is whether it is garbage.
local function claim_if_readable(raw)
  local fine, claim = pcall(read_claim, raw)
  return fine and claim or nil, not fine and (raw and true or false)
end

local function fresh_claim(due, place)
  return {token = 0, place = place or 0, due = due, attempt = 1, recoveries = 0, intent = 0, owner = '', tenant = ''}
end

local function write_claim(claim)
  local raw = struct.pack('>I8I2I6I4I2BBc0Bc0', claim.token, claim.place, claim.due, claim.attempt, claim.recoveries,
    claim.intent, #claim.owner, claim.owner, #claim.tenant, claim.tenant)
  if not has(claim.intent, PUT) then return raw end
  return raw .. struct.pack('>I8I8', claim.put_due, claim.put_first) .. claim.put_record
end

-- 0 for a missing entry and for one that is too short for a claim.
local function token_of_claim(raw) return raw and #raw >= 25 and struct.unpack('>I8', raw) or 0 end

-- Nothing for a missing entry and for one that is too short to say.
local function due_of_claim(raw) return raw and #raw >= 16 and struct.unpack('>I6', raw, 11) or nil end
