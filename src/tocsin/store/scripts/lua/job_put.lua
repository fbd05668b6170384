-- job_put: add jobs, or change jobs that exist, as the mode of each item says.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed,
--        blocked, needs, events
-- ARGV   epoch, clock, session, seq, items: msgpack [id, due, kind, mode, expected version, record] * n
--        kind of due: 0 a time, 1 a delay from now, 2 a time, or now if it has passed, so that a job cannot go before
--        others by naming a time that is over; mode: 0 ignore, 1 replace, 2 postpone, 3 update (due kept if the trigger
--        is), 4 edit (due 0: kept), 5 edit what is in line and nothing else
-- RETURN {1, codes, head}: a digit per item: 0 unchanged, 1 new, 2 changed, 3 remembered as done, 4 version
--        conflict, 5 nothing to edit; head is the earliest due put if it is the first in line or due now, else -1
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include counts
--@include order
--@include line_entry
--@include record_edit
--@include claim_intents
--@include events
--@include widest
--@include outcome_entry
local IGNORE, REPLACE, POSTPONE, UPDATE, EDIT, EDIT_IN_LINE = 0, 1, 2, 3, 4, 5
local flat = cmsgpack.unpack(items)

local ids = {}
for at = 1, #flat, 6 do ids[#ids + 1] = flat[at] end
local stored = redis.call('HMGET', jobs, unpack(ids))
local remembered = redis.call('ZCARD', done) > 0 and redis.call('ZMSCORE', done, unpack(ids)) or {}

local any_parked = redis.call('ZCARD', parked) > 0

local codes, earliest, widest, fresh, changed = {}, nil, 0, 0, false

local function line_up(id, due, record, claim)
  enter_line(id, due, claim, record)
  if not earliest or due < earliest then earliest = due end
end

local function store(id, record)
  set(jobs, id, record)
  if #record > widest then widest = #record end
end

local function aside_of(id)
  for _, stage in ipairs({working, paused, parked, dead, blocked}) do
    if redis.call('ZSCORE', stage, id) then return stage end
  end
end

-- A job that is in line keeps its place, unless it has a new due time.
local function change_in_line(id, record, due, entry, claim, keeps_due)
  store(id, record)
  if keeps_due and not (entry.band or entry.apart) then return end
  leave_line(id, entry)
  if keeps_due then return enter_line(id, entry.due, claim or fresh_claim(entry.due, entry.place), record) end
  drop(claims, id)
  drop(errors, id)
  line_up(id, due, record)
end

-- A blocked job goes on waiting, and then starts not before the new time.
local function postpone(id, due, claim)
  enter(blocked, due, id)
  if claim then
    claim.due = due
    set(claims, id, write_claim(claim))
  end
end

-- A job that is neither in line nor working. If the edit keeps its due time it stays where it is, a dead one too. Only
-- a parked job is tried again, because its record may have been the reason; but not if its run has ended.
local function change_aside(id, record, due, stage, claim, keeps_due, mode)
  store(id, record)
  if keeps_due and (stage == paused or stage == dead or stage == blocked) then return end
  if keeps_due and claim and claim.attempt == 0 then return end
  if stage == blocked and mode == POSTPONE then return postpone(id, due, claim) end
  if stage == paused then
    set(claims, id, write_claim(fresh_claim(due)))
    enter(paused, due, id)
    return
  end
  if stage then leave(stage, id) end
  -- The new definition waits for no other job.
  if stage == blocked then drop(needs, id) end
  drop(claims, id)
  drop(errors, id)
  line_up(id, due, record)
end

-- Drop the ticks that were due on the cadence that ends here.
local function drop_ticks(id, old, claim, entry, due)
  if not (is_readable(old) and is_recurring(old)) then return end
  local first = claim and first_owed(claim) or entry and entry.due
  if first then skip(id, first, math.min(now + 1, due), WHY.EDITED) end
end

-- While a job is working nothing moves: the edit waits in its claim, with due 0 if it leaves the run alone.
local function intend(id, claim, record, due, keeps_due)
  if #record > widest then widest = #record end
  if not keeps_due and has(claim.intent, PUT) and claim.put_due > 0 and is_readable(claim.put_record)
    and is_recurring(claim.put_record) then
    skip(id, claim.put_due, math.min(now + 1, due), WHY.EDITED)
  end
  local before = has(claim.intent, PUT) and claim
  claim.put_first = before and before.put_first > 0 and before.put_first or keeps_due and 0 or math.max(due, 1)
  claim.put_due = keeps_due and (before and before.put_due or 0) or math.max(due, 1)
  claim.put_record = record
  claim.intent = with(without(claim.intent, REMOVE), PUT)
  set(claims, id, write_claim(claim))
end

local function put_existing(id, due, mode, expected, record, old)
  local entry = line_entry_of(id)
  if mode == EDIT_IN_LINE then
    if not entry then return '5' end
    mode = EDIT
  end
  local stage = entry and waiting or aside_of(id)
  local raw = redis.call('HGET', claims, id)
  local claim = claim_if_readable(raw)
  if stage == working then claim = claim_at_work(raw, now) end
  local held = stage == working
  if held and has(claim.intent, PUT) then old = claim.put_record end
  local removing = held and has(claim.intent, REMOVE)
  if expected > 0 and is_readable(old) and version_of(old) ~= expected then return '4' end
  if mode == EDIT and removing then return '5' end
  if mode == IGNORE and not removing then return '0' end
  local same = is_readable(old) and is_same_definition(old, record)
  if mode == UPDATE and same and not removing and stage then return '0' end
  local keeps_due = (mode == EDIT and due == 0)
    or (mode == UPDATE and is_readable(old) and trigger_of(old) == trigger_of(record) and not removing)
  if is_readable(old) then record = with_counts_of(record, old) end
  -- Uncounted successes stay in the claim or the score, if that stays.
  local from = claim or entry
  local stays = held or keeps_due and stage ~= parked
  if from and not stays then record = with_uncounted(record, from) end
  if held then intend(id, claim, record, due, keeps_due) else
    if keeps_due and claim then due = claim.due end
    if due == 0 then due = now end
    if not keeps_due then drop_ticks(id, old, claim, entry, due) end
    if entry then
      change_in_line(id, record, due, entry, claim, keeps_due)
    else
      change_aside(id, record, due, stage, claim, keeps_due, mode)
    end
  end
  changed = true
  return '2'
end

for i, id in ipairs(ids) do
  local at = (i - 1) * 6
  local due, mode, expected = flat[at + 2], flat[at + 4], flat[at + 5]
  -- Counted from the end of this millisecond, so that nothing starts early.
  if flat[at + 3] == 1 then due = due > 0 and math.ceil(call.micros / 1000) + due or now end
  -- Behind all jobs that were put before in this millisecond: jobs that are due in the same one are ordered by id.
  if flat[at + 3] == 2 and due < now then due = math.ceil(call.micros / 1000) end
  local record = with_version(flat[at + 6], call.version)
  if stored[i] then
    codes[i] = put_existing(id, due, mode, expected, record, stored[i])
  elseif mode == EDIT or mode == EDIT_IN_LINE then
    codes[i] = '5'
  elseif remembered[i] and tonumber(remembered[i]) > now and mode == IGNORE
    and is_kept(redis.call('HGET', results, id)) then
    codes[i] = '3'
  else
    if remembered[i] then
      leave(done, id)
      leave(unnamed, id)
      drop(results, id)
    end
    if any_parked and redis.call('ZSCORE', parked, id) then
      -- A job that lost its record and was parked without one starts anew.
      leave(parked, id)
      drop(claims, id)
      drop(errors, id)
    end
    store(id, record)
    line_up(id, due, record)
    fresh = fresh + 1
    codes[i] = '1'
  end
end

local reply = {1, table.concat(codes), -1}
if fresh == 0 and not changed then return unchanged(call, reply) end
if earliest then
  local first = head()
  if earliest <= now or first < 0 or earliest < first then reply[3] = earliest end
end
write_all({jobs, claims})
remember_widest(widest, fresh)
if fresh > 0 then count_up('put', fresh) end
return commit(call, reply, 'put', ids)
