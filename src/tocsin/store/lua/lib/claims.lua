-- claims: id -> token u64, due u64, attempt u32, recoveries u16, intent u8, owner, [intended due u64, first
-- intended due u64, record]. Edits may follow each other in one run: the cadence that its worker knows ends at the first.
-- Token 0 and no owner: nobody holds it, the entry keeps due and attempt of an unfinished run.
-- Intent bits: what finish, retry, release and recover obey before the worker's wish.
local PAUSE, REMOVE, PUT, CANCEL, UNREADABLE = 1, 2, 4, 8, 16

local function has(bits, bit) return math.floor(bits / bit) % 2 == 1 end
local function with(bits, bit) return has(bits, bit) and bits or bits + bit end
local function without(bits, bit) return has(bits, bit) and bits - bit or bits end

local function read_claim(raw)
  local claim = {}
  local at
  claim.token, claim.due, claim.attempt, claim.recoveries, claim.intent, claim.owner, at =
    struct.unpack('>I8I8I4I2BBc0', raw)
  if has(claim.intent, PUT) then
    claim.put_due, claim.put_first = struct.unpack('>I8I8', raw, at)
    claim.put_record = string.sub(raw, at + 16)
  end
  return claim
end

local function write_claim(claim)
  local raw = struct.pack('>I8I8I4I2BBc0', claim.token, claim.due, claim.attempt, claim.recoveries, claim.intent,
    #claim.owner, claim.owner)
  if has(claim.intent, PUT) then raw = raw .. struct.pack('>I8I8', claim.put_due, claim.put_first) .. claim.put_record end
  return raw
end

-- What stays of a claim when its holder lets go but the run has not ended.
local function let_go(claim)
  claim.token, claim.owner = 0, ''
  claim.intent = without(without(without(claim.intent, PAUSE), REMOVE), PUT)
  claim.put_due, claim.put_first, claim.put_record = nil, nil, nil
  return claim
end

-- Where an edit during a run ends the cadence that the run belongs to.
local function cadence_end(claim) return math.min(claim.put_first, claim.put_due) end

local function fresh_claim(due)
  return {token = 0, due = due, attempt = 1, recoveries = 0, intent = 0, owner = ''}
end

-- An entry that says no more than a score in `waiting` does need not be kept.
local function is_plain(claim)
  return claim.attempt == 1 and claim.recoveries == 0 and claim.intent == 0
end
