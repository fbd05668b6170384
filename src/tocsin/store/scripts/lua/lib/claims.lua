-- claims: id -> token u64, place u16, due u48, attempt u32, recoveries u16, intent u8, owner, tenant,
--        [intended due u64, first intended due u64, record].
-- Token 0 and no owner: nobody holds it, the entry keeps due and attempt of an unfinished run. Place is where it stood
-- among those that entered the line in the same millisecond; in a queue of order `due`, see line.lua. Tenant is whose
-- cap the run counts for, with '=' before it, if it counts for one. Edits may follow each other in one run: the
-- cadence that its worker knows ends at the first.
-- Attempt 0: the run has ended, and nobody could tell when the job is due next (run_park). It is not run again: who claims
-- it says when the job goes on (run_advance).
-- Intent bits: what finish, retry, release and recover obey before the worker's wish. Above them, how often a worker could
-- not read the record of this run.
local PAUSE, REMOVE, PUT, CANCEL = 1, 2, 4, 8

local function has(bits, bit) return math.floor(bits / bit) % 2 == 1 end
local function with(bits, bit) return has(bits, bit) and bits or bits + bit end
local function without(bits, bit) return has(bits, bit) and bits - bit or bits end

local function unread_times(bits) return math.floor(bits / 16) end
local function with_unread_times(bits, times) return bits % 16 + math.min(times, 15) * 16 end

-- When the next worker may try to read a record that so many could not: another worker may have the package, the zone or
-- the version that this one lacks. After 1 s, 2 s, and so on up to 256 s; later than any digest is a number.
local function read_again_at(times) return now + 1000 * 2 ^ math.min(times - 1, 8) end

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

-- Whether it is one at all, without taking it apart.
local function is_claim(raw)
  local owner_size = raw and #raw >= 25 and string.byte(raw, 24)
  return owner_size and #raw >= 25 + owner_size + (string.byte(raw, 25 + owner_size) or 255)
end

-- nil for none and for garbage: one bad entry must not stop a script that has others to deal with.
local function claim_if_readable(raw)
  local fine, claim = pcall(read_claim, raw)
  return fine and claim or nil
end

local function fresh_claim(due, place)
  return {token = 0, place = place or 0, due = due, attempt = 1, recoveries = 0, intent = 0, owner = '', tenant = ''}
end

-- Of a run that is being worked on: the claim that `raw` is, or where nobody can read it, one for the intents of a person.
-- Whoever holds it cannot end it any more; recovery brings it back at its deadline, and obeys them.
local function claim_at_work(raw) return claim_if_readable(raw) or fresh_claim(now) end

local function write_claim(claim)
  local raw = struct.pack('>I8I2I6I4I2BBc0Bc0', claim.token, claim.place, claim.due, claim.attempt, claim.recoveries,
    claim.intent, #claim.owner, claim.owner, #claim.tenant, claim.tenant)
  if has(claim.intent, PUT) then raw = raw .. struct.pack('>I8I8', claim.put_due, claim.put_first) .. claim.put_record end
  return raw
end

-- What stays of a claim when its holder lets go but the run has not ended.
local function let_go(claim)
  claim.token, claim.owner, claim.tenant = 0, '', ''
  claim.intent = without(without(without(claim.intent, PAUSE), REMOVE), PUT)
  claim.put_due, claim.put_first, claim.put_record = nil, nil, nil
  return claim
end

-- Where an edit during a run ends the cadence that the run belongs to.
local function cadence_end(claim) return math.min(claim.put_first, claim.put_due) end

-- The first tick of the job that has had no run: that of the claim, unless its run has ended.
local function first_owed(claim) return claim.attempt == 0 and claim.due + 1 or claim.due end

-- An entry that says no more than a score in `waiting` does need not be kept.
local function is_plain(claim)
  return claim.attempt == 1 and claim.recoveries == 0 and claim.intent == 0 and claim.place == 0
end

-- The tenant of a claim that is not taken apart otherwise.
local function tenant_of_claim(raw)
  local at = 25 + string.byte(raw, 24)
  return string.sub(raw, at + 1, at + (string.byte(raw, at) or 0))
end
