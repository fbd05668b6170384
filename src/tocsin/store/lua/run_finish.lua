-- run_finish: end runs. Recurring jobs wait for their next due time, one-shots are done.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, items: msgpack [id, token (8 bytes), next due (text, '' for none), outcome] * n;
--        outcome 0 failed, 1 succeeded, 2 skipped, 3 cancelled; +8 for an extra run; +16 if keep (s), result and error
--        follow; +32 if then the ticks follow that the job passes: [first u64, until u64, why u8] * n; +64 if then a
--        note follows, which is told in the event
-- RETURN {1, lost, head, carry}: the ids whose claim was lost (nothing changed for them); head: the first in line,
--        or -1; carry: 1 if others wait for one of them, and are to be told
-- USES   call, records, claims, moves, line, endings, settle
if answered then return answered end
local COUNTERS = {[FAILED] = 'failed', [SUCCEEDED] = 'succeeded', [SKIPPED] = 'skipped', [CANCELLED] = 'cancelled'}
local EXTRA_RUN, MORE, PASSED, NOTED = 8, 16, 32, 64
local flat = cmsgpack.unpack(items)
local plain_owner, owner_ends = string.char(0, #owner) .. owner, 24 + #owner
local any_errors = redis.call('EXISTS', errors) == 1
local lost, told, ends, tally = {}, {}, {}, {[0] = 0, 0, 0, 0}

local ids, tokens, nexts, outcomes, extras, more, passed, noted, going_on = {}, {}, {}, {}, {}, {}, {}, {}, {}
local at, n, size = 1, 0, #flat
while at <= size do
  n = n + 1
  ids[n], tokens[n], nexts[n] = flat[at], flat[at + 1], flat[at + 2]
  if nexts[n] ~= '' then going_on[#going_on + 1] = ids[n] end
  local outcome = flat[at + 3]
  at = at + 4
  if outcome >= MORE then
    local is_noted = outcome >= NOTED
    if is_noted then outcome = outcome - NOTED end
    local passes = outcome >= PASSED
    if passes then outcome = outcome - PASSED end
    if outcome >= MORE then
      outcome = outcome - MORE
      more[n] = {flat[at], flat[at + 1], flat[at + 2]}
      at = at + 3
    end
    if passes then
      passed[n] = flat[at]
      at = at + 1
    end
    if is_noted then
      noted[n] = flat[at]
      at = at + 1
    end
  end
  if outcome >= EXTRA_RUN then
    outcome = outcome - EXTRA_RUN
    extras[n] = true
  end
  outcomes[n] = outcome
end
local raws = redis.call('HMGET', claims, unpack(ids))
local records = #going_on > 0 and redis.call('HMGET', jobs, unpack(going_on)) or {}

local function count(record, outcome)
  return counted(record, outcome == SUCCEEDED and 1 or 0, outcome == FAILED and 1 or 0, outcome == SKIPPED and 0 or 1)
end

-- Records as this call leaves them, false for none: a job and its extra runs may end in one batch, in any order.
local latest, any_extras = {}, next(extras) ~= nil
local function keep_record(id, record)
  if any_extras then
    latest[id] = record
  elseif record then
    set(jobs, id, record)
  end
end

-- The worker planned on the definition it had. One that was put meanwhile begins at its own time: what the old one
-- still owed is dropped.
local function tell_passed(id, claim, next_due, ranges)
  local edited = claim and has(claim.intent, PUT) and claim.put_due > 0
  local to = edited and cadence_end(claim) or math.huge
  for at = 1, #(ranges or ''), 17 do
    local first, until_ms, why = struct.unpack('>I8I8B', ranges, at)
    skip(id, first, math.min(until_ms, to), why)
  end
  if edited and next_due ~= '' then skip(id, tonumber(next_due), math.min(now + 1, to), WHY_EDITED) end
end

local left, unclaimed, ended = list_of(out, working), list_of(unset, claims), list_of(unset, jobs)
local function finish(id, raw, next_due, record, outcome, extra, rest, ranges)
  left[#left + 1] = id
  freed(raw)
  if next_due ~= '' then
    if latest[id] ~= nil then record = latest[id] end
    if record then record = count(record, outcome) else next_due = '' end
  elseif extra then
    local parent = parent_of(id)
    local of = latest[parent]
    if of == nil then of = redis.call('HGET', jobs, parent) end
    if of then latest[parent] = count(of, outcome) end
  end
  if string.byte(raw, 23) > 0 then
    local claim = read_claim(raw)
    local verdict, put = obeyed(id, claim, record or latest[id] or nil, tonumber(next_due) or 0, true)
    if verdict ~= 'removed' then tell_passed(id, claim, next_due, ranges) end
    if verdict then
      if verdict ~= 'removed' and next_due ~= '' then tell_watchers(id, outcome) end
      keep_record(id, put or false)
      return
    end
    record = put
  elseif ranges then
    tell_passed(id, nil, next_due, ranges)
  end
  if next_due ~= '' then
    keep_record(id, record)
    unclaimed[#unclaimed + 1] = id
    enter_line(id, next_due, nil, record)
    -- Others wait for it since before it recurred: this run must do for them.
    tell_watchers(id, outcome)
    if rest and rest[3] ~= '' then set(errors, id, rest[3]) end
    return
  end
  keep_record(id, false)
  if rest or any_watchers then
    end_job(id, rest and rest[1] or 0, outcome, rest and rest[2] or '')
  else
    ended[#ended + 1] = id
    unclaimed[#unclaimed + 1] = id
    if any_errors then drop(errors, id) end
  end
end

local seen = 0
for i = 1, n do
  local id, raw, outcome, record = ids[i], raws[i], outcomes[i], nil
  if nexts[i] ~= '' then
    seen = seen + 1
    record = records[seen]
  end
  -- Held: the token is this one and so is the owner.
  if raw and string.sub(raw, 1, 8) == tokens[i]
    and (string.sub(raw, 23, owner_ends) == plain_owner or read_claim(raw).owner == owner) then
    finish(id, raw, nexts[i], record, outcome, extras[i], more[i], passed[i])
    if noted[i] then note(id, noted[i]) end
    tally[outcome] = tally[outcome] + 1
    told[#told + 1] = id
    ends[#ends + 1] = string.sub(raw, 9, 20)
    ends[#ends + 1] = string.char(outcome)
  else
    lost[#lost + 1] = id
  end
end
for id, record in pairs(latest) do
  if record then set(jobs, id, record) end
end
apply()
forget()
for outcome, times in pairs(tally) do
  if times > 0 then redis.call('HINCRBY', meta, COUNTERS[outcome], times) end
end
return commit({1, lost, head(), to_carry}, 'finish', told, ends)
