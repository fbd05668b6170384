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
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, items, most: items: msgpack columns: ids, tokens (8 bytes), next dues (text,
--        '' for none), outcomes, more; outcome 0 failed, 1 succeeded, 2 skipped, 3 cancelled; +8 for an extra run; more:
--        nil, or keep (s), 1 if nobody named the job, result, and if there is more to say: error, the ticks that the job
--        passes: [first u64, until u64, why u8] * n, a note for the event; outcomes of which all are the same may be that
--        number, and more of which all are nil may be nil; most: how many outcomes of unnamed jobs the partition keeps
-- RETURN {1, lost, head, carry}: the ids whose claim was lost (nothing changed for them); head: the first in line,
--        or -1; carry: 1 if others wait for one of them, and are to be told
-- USES   call, records, claims, moves, line, endings, widest, settle, forget
if answered then return answered end
local COUNTERS = {[FAILED] = 'failed', [SUCCEEDED] = 'succeeded', [SKIPPED] = 'skipped', [CANCELLED] = 'cancelled'}
local MARKS = {[FAILED] = '\0', [SUCCEEDED] = '\1', [SKIPPED] = '\2', [CANCELLED] = '\3'}
local EXTRA_RUN = 8
local find = string.find
local ids, tokens, nexts, outcomes, more = unpack(cmsgpack.unpack(items))
local n, any_extras = #ids, false
local same = type(outcomes) == 'number' and outcomes
if same then
  any_extras = same >= EXTRA_RUN
else
  for i = 1, n do any_extras = any_extras or outcomes[i] >= EXTRA_RUN end
end
local raws = claims_of(ids)
local any_errors = redis.call('EXISTS', errors) == 1

-- Those that have no failure to tell any more: they have succeeded, or are no more.
local function without_error(scores)
  local found = {}
  for i = 1, n do
    if scores[i] == '' or (same or outcomes[i]) == SUCCEEDED then found[#found + 1] = ids[i] end
  end
  return found
end

-- This run, and those before it that were not counted yet.
local function count(record, outcome, uncounted)
  local succeeded, failed = outcome == SUCCEEDED and 1 or 0, outcome == FAILED and 1 or 0
  return counted(record, succeeded + uncounted, failed, (outcome == SKIPPED and 0 or 1) + uncounted)
end

-- Held by who ends it, and nobody has marked it with an intent.
local unmarked = string.char(0, #owner) .. owner
local function is_held_plain(raw, token)
  return raw and find(raw, token, 1, true) == 1 and find(raw, unmarked, 23, true) == 23
end

local tally = {[0] = 0, 0, 0, 0}
local function commit_all(lost, held, ends)
  forget(tonumber(most))
  for outcome, times in pairs(tally) do
    if times > 0 then count_up(COUNTERS[outcome], times) end
  end
  return commit({1, lost, head(), to_carry}, 'finish', held, ends)
end

-- Fast path: all are held, nobody has marked one, and nothing is to be said of any but its result. Nearly always it is
-- so; return before creating the functions below.
do
  local ends, ending, below, seen_raw, seen_token, seen_outcome = {}, nil, nil, nil, nil, nil
  local scores, to_count, counted_ids = {}, {}, {}
  local all_plain = not (any_watchers or any_extras)
  for i = 1, all_plain and n or 0 do
    local raw, token, outcome, next_due = raws[i], tokens[i], same or outcomes[i], nexts[i]
    -- Those that were due and claimed together follow each other, and their entries are the same.
    if raw ~= seen_raw or token ~= seen_token or outcome ~= seen_outcome then
      if not is_held_plain(raw, token) then
        all_plain = false
        break
      end
      seen_raw, seen_token, seen_outcome, ending = raw, token, outcome, sub(raw, 9, 20) .. MARKS[outcome]
      below = outcome == SUCCEEDED and uncounted_with_one_more(raw)
    end
    if more and more[i] and more[i][4] then
      all_plain = false
      break
    end
    ends[i] = ending
    if next_due ~= '' and not below then
      to_count[#to_count + 1], counted_ids[#counted_ids + 1] = i, ids[i]
    end
    scores[i] = below and next_due ~= '' and next_due .. below or next_due
  end
  local records = all_plain and to_count[1] and redis.call('HMGET', jobs, unpack(counted_ids)) or {}
  for at = 1, all_plain and #to_count or 0 do all_plain = all_plain and records[at] end
  if all_plain then
    local stored, record_of, ended = {}, {}, {}
    for at, i in ipairs(to_count) do
      record_of[i] = count(records[at], same or outcomes[i], uncounted_in(raws[i]))
      stored[2 * at - 1], stored[2 * at] = ids[i], record_of[i]
    end
    for i = 1, n do
      local id, score, outcome = ids[i], scores[i], same or outcomes[i]
      tally[outcome] = tally[outcome] + 1
      freed(raws[i])
      if score == '' then
        ended[#ended + 1] = id
        local kept = more and more[i]
        if kept and kept[1] > 0 then remember(id, kept[1], outcome, kept[3], kept[2] == 1) end
      else
        enter_line(id, score, nil, record_of[i])
      end
    end
    out[working], unset[claims], unset[jobs] = ids, ids, ended
    if any_errors then unset[errors] = same == SUCCEEDED and ids or without_error(scores) end
    apply()
    each('HSET', {[jobs] = stored})
    return commit_all({}, ids, ends)
  end
end

-- Records as this call leaves them, false for none: a job and its extra runs may end in one batch, in any order.
local latest = {}
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
  if edited and next_due ~= '' then skip(id, tonumber(next_due), math.min(now + 1, to), WHY.EDITED) end
end

local held, ended = list_of(out, working), list_of(unset, jobs)
local function finish(id, raw, plain, next_due, record, outcome, extra, rest)
  local keep, unnamed_flag, result, failure, ranges, noted
  if rest then keep, unnamed_flag, result, failure, ranges, noted = unpack(rest) end
  if next_due ~= '' then
    if any_extras and latest[id] ~= nil then record = latest[id] end
    if record then record = count(record, outcome, uncounted_in(raw)) else next_due = '' end
  elseif extra then
    local parent = parent_of(id)
    local of = latest[parent]
    if of == nil then of = redis.call('HGET', jobs, parent) end
    if of then latest[parent] = count(of, outcome, 0) end
  end
  -- A success makes the last failure an old one, also that of the job that this was an extra run of.
  if any_errors and outcome == SUCCEEDED then drop(errors, extra and parent_of(id) or id) end
  if noted then note(id, noted) end
  if not plain then
    local claim = read_claim(raw)
    if next_due ~= '' then claim.place = 0 end
    local verdict, put = obeyed(id, claim, record or latest[id] or nil, tonumber(next_due) or 0, true)
    if verdict ~= 'removed' then tell_passed(id, claim, next_due, ranges) end
    if verdict then
      if verdict ~= 'removed' and next_due ~= '' then tell_watchers(id, outcome) end
      return keep_record(id, put or false)
    end
    record = put
  elseif ranges then
    tell_passed(id, nil, next_due, ranges)
  end
  if next_due ~= '' then
    keep_record(id, record)
    enter_line(id, next_due, nil, record)
    -- Others wait for it since before it recurred: this run must do for them.
    if any_watchers then tell_watchers(id, outcome) end
    if failure and failure ~= '' then set(errors, id, failure) end
    return
  end
  keep_record(id, false)
  if rest or any_watchers then
    end_job(id, keep or 0, outcome, result or '', unnamed_flag == 1)
  else
    ended[#ended + 1] = id
  end
end

local going_on = {}
for i = 1, n do
  if nexts[i] ~= '' then going_on[#going_on + 1] = ids[i] end
end
local records = going_on[1] and redis.call('HMGET', jobs, unpack(going_on)) or {}
local lost, held_n, seen, ends = {}, 0, 0, {}
-- A function of its own: Lua counts the locals of a loop among the 200 of the script.
local function end_run(i, record)
  local id, raw, token, outcome = ids[i], raws[i], tokens[i], same or outcomes[i]
  local extra = outcome >= EXTRA_RUN
  if extra then outcome = outcome - EXTRA_RUN end
  local plain = is_held_plain(raw, token)
  local claim = not plain and raw and find(raw, token, 1, true) == 1 and claim_if_readable(raw)
  if not plain and not (claim and claim.owner == owner) then
    lost[#lost + 1] = id
    return
  end
  held_n = held_n + 1
  held[held_n], ends[held_n] = id, sub(raw, 9, 20) .. MARKS[outcome]
  tally[outcome] = tally[outcome] + 1
  freed(raw)
  finish(id, raw, plain, nexts[i], record, outcome, extra, more and more[i])
end

for i = 1, n do
  if nexts[i] ~= '' then seen = seen + 1 end
  end_run(i, nexts[i] ~= '' and records[seen] or nil)
end
if held_n == 0 then return nothing_held(lost) end
for id, record in pairs(latest) do
  if record then set(jobs, id, record) end
end
if any_errors then
  for _, id in ipairs(ended) do drop(errors, id) end
end
-- Of all that were held: an entry that an intent keeps is written after that.
unset[claims] = held
apply()
return commit_all(lost, held, ends)
