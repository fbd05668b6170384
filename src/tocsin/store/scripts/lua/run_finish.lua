-- run_finish: end runs. Recurring jobs wait for their next due time; one-shots are done.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, errors, done, results, unnamed, watchers, outbox,
--        events
-- ARGV   epoch, clock, session, seq, owner, items, most: items: msgpack columns: ids, tokens (8 bytes), next dues
--        (text, '' for none), outcomes, more; outcome 0 failed, 1 succeeded, 2 skipped, 3 cancelled; +8 for an extra
--        run; more: nil, or keep (s), 1 if the job's id was generated, result, and if there is more to say: error, the
--        ticks that the job passes: [first u64, until u64, why u8] * n, a note for the event; outcomes of which all are
--        the same may be that number, and more of which all are nil may be nil; most: how many outcomes of unnamed jobs
--        the partition keeps
-- RETURN {1, lost, head, carry}: the ids whose claim was lost (nothing changed for them); head: the first in line,
--        or -1; carry: 1 if the outbox has something to carry
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include counts
--@include claim
--@include remember
--@include forget_outcomes
--@include order
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
local raws = redis.call('HMGET', claims, unpack(ids))
local any_errors = redis.call('EXISTS', errors) == 1
call.has_watchers = redis.call('EXISTS', watchers) == 1

-- Count this run, and `uncounted` successes before it.
local function count(record, outcome, uncounted)
  local succeeded, failed = outcome == SUCCEEDED and 1 or 0, outcome == FAILED and 1 or 0
  return counted(record, succeeded + uncounted, failed, (outcome == SKIPPED and 0 or 1) + uncounted)
end

-- Whether the caller holds this claim, and it carries no intent.
local unmarked = string.char(0, #owner) .. owner
local function is_held_unmarked(raw, token)
  return raw and find(raw, token, 1, true) == 1 and find(raw, unmarked, INTENT_AT, true) == INTENT_AT
end

local tally = {[0] = 0, 0, 0, 0}
local function commit_all(lost, held, runs)
  forget_outcomes(tonumber(most))
  for outcome, times in pairs(tally) do
    if times > 0 then count_up(COUNTERS[outcome], times) end
  end
  return commit(call, {1, lost, head(), call.carry}, 'finish', held, runs)
end

-- Fast path: every claim is ours and carries no intent, and no run has anything to say but its result. Write the batch
-- and return, before the functions for everything else are created.
do
  local runs, run, below, seen_raw, seen_token, seen_outcome = {}, nil, nil, nil, nil, nil
  local scores, to_count, ids_to_count = {}, {}, {}
  local is_ordinary = not (call.has_watchers or any_extras)
  for i = 1, is_ordinary and n or 0 do
    local raw, token, outcome, next_due = raws[i], tokens[i], same or outcomes[i], nexts[i]
    -- Runs that were due and claimed together follow each other, and their claims are the same.
    if raw ~= seen_raw or token ~= seen_token or outcome ~= seen_outcome then
      if not is_held_unmarked(raw, token) then
        is_ordinary = false
        break
      end
      seen_raw, seen_token, seen_outcome, run = raw, token, outcome, sub(raw, RUN_FROM, RUN_TO) .. string.char(outcome)
      below = outcome == SUCCEEDED and uncounted_with_one_more(raw)
    end
    if more and more[i] and more[i][4] then
      is_ordinary = false
      break
    end
    runs[i] = run
    if next_due ~= '' and not below then
      to_count[#to_count + 1], ids_to_count[#ids_to_count + 1] = i, ids[i]
    end
    scores[i] = below and next_due ~= '' and next_due .. below or next_due
  end
  local records = is_ordinary and to_count[1] and redis.call('HMGET', jobs, unpack(ids_to_count)) or {}
  for at = 1, is_ordinary and #to_count or 0 do is_ordinary = is_ordinary and records[at] end
  if is_ordinary then
    local stored, record_of, ended, without_error = {}, {}, {}, {}
    for at, i in ipairs(to_count) do
      record_of[i] = count(records[at], same or outcomes[i], uncounted_in(raws[i]))
      stored[2 * at - 1], stored[2 * at] = ids[i], record_of[i]
    end
    for i = 1, n do
      local id, score, outcome = ids[i], scores[i], same or outcomes[i]
      tally[outcome] = tally[outcome] + 1
      freed(raws[i])
      -- A job that has succeeded, or is no more, has no failure to report any more.
      if any_errors and (score == '' or outcome == SUCCEEDED) then without_error[#without_error + 1] = id end
      if score == '' then
        ended[#ended + 1] = id
        local kept = more and more[i]
        if kept and kept[1] > 0 then remember(id, kept[1], outcome, kept[3], kept[2] == 1) end
      else
        enter_line(id, score, nil, record_of[i])
      end
    end
    writes.leaving[working], writes.dropping[claims], writes.dropping[jobs] = ids, ids, ended
    if any_errors then writes.dropping[errors] = without_error end
    write_all()
    write_lists('HSET', {[jobs] = stored})
    return commit_all({}, ids, runs)
  end
end

--@include settle
-- Records as this call leaves them, false for none: a job and its extra runs may end in one batch, in any order.
local latest = {}
local function keep_record(id, record)
  if any_extras then
    latest[id] = record
  elseif record then
    set(jobs, id, record)
  end
end

-- The worker planned on the definition that it had. A definition that was put meanwhile begins at its own time: ticks
-- that the old one still owed are dropped.
local function skip_ticks(id, claim, next_due, passed)
  local edited = claim and has(claim.intent, PUT) and claim.put_due > 0
  local to = edited and cadence_end(claim) or math.huge
  skip_passed(id, passed or '', to)
  if edited and next_due ~= '' then skip(id, tonumber(next_due), math.min(now + 1, to), WHY.EDITED) end
end

-- `is_plain`: the claim carries no intent.
local held, ended = list_of(writes.leaving, working), list_of(writes.dropping, jobs)
local function finish(id, raw, is_plain, next_due, record, outcome, extra, rest)
  local keep, unnamed_flag, result, failure, passed, noted
  if rest then keep, unnamed_flag, result, failure, passed, noted = unpack(rest) end
  if next_due ~= '' then
    if any_extras and latest[id] ~= nil then record = latest[id] end
    if record then record = count(record, outcome, is_plain and uncounted_in(raw) or 0) else next_due = '' end
  elseif extra then
    local parent = parent_of(id)
    local of = latest[parent]
    if of == nil then of = redis.call('HGET', jobs, parent) end
    if of then latest[parent] = count(of, outcome, 0) end
  end
  -- A success makes the last failure an old one, also that of the job that this was an extra run of.
  if any_errors and outcome == SUCCEEDED then drop(errors, extra and parent_of(id) or id) end
  if noted then note(id, noted) end
  if not is_plain then
    local claim = read_claim(raw)
    if next_due ~= '' then record = with_uncounted(record, claim) end
    local verdict, put = apply_intent(id, claim, record or latest[id] or nil, tonumber(next_due) or 0, true)
    if verdict ~= 'removed' then skip_ticks(id, claim, next_due, passed) end
    if verdict then
      if verdict ~= 'removed' and next_due ~= '' then notify_watchers(id, outcome) end
      return keep_record(id, put or false)
    end
    record = put
  elseif passed then
    skip_ticks(id, nil, next_due, passed)
  end
  if next_due ~= '' then
    keep_record(id, record)
    enter_line(id, next_due, nil, record)
    -- Jobs may wait for it since before it recurred: this run must do for them.
    notify_watchers(id, outcome)
    if failure and failure ~= '' then set(errors, id, failure) end
    return
  end
  keep_record(id, false)
  if rest or has_watchers() then
    end_job(id, keep or 0, outcome, result or '', unnamed_flag == 1)
  else
    ended[#ended + 1] = id
  end
end

local recurring = {}
for i = 1, n do
  if nexts[i] ~= '' then recurring[#recurring + 1] = ids[i] end
end
local records = recurring[1] and redis.call('HMGET', jobs, unpack(recurring)) or {}
local lost, seen, runs = {}, 0, {}
-- A function of its own: Lua counts the locals of a loop among the 200 of the script.
local function end_run(i, record)
  local id, raw, token, outcome = ids[i], raws[i], tokens[i], same or outcomes[i]
  local extra = outcome >= EXTRA_RUN
  if extra then outcome = outcome - EXTRA_RUN end
  local is_plain = is_held_unmarked(raw, token)
  local claim = not is_plain and raw and find(raw, token, 1, true) == 1 and claim_if_readable(raw)
  if not is_plain and not (claim and claim.owner == owner) then
    lost[#lost + 1] = id
    return
  end
  held[#held + 1], runs[#runs + 1] = id, sub(raw, RUN_FROM, RUN_TO) .. string.char(outcome)
  tally[outcome] = tally[outcome] + 1
  freed(raw)
  finish(id, raw, is_plain, nexts[i], record, outcome, extra, more and more[i])
end

for i = 1, n do
  if nexts[i] ~= '' then seen = seen + 1 end
  end_run(i, nexts[i] ~= '' and records[seen] or nil)
end
-- Nothing was held, so nothing is written (nothing_held in settle_each.lua).
if #held == 0 then return {1, lost, head(), 0} end
for id, record in pairs(latest) do
  if record then set(jobs, id, record) end
end
if any_errors then
  for _, id in ipairs(ended) do drop(errors, id) end
end
-- Drop all claims that were held. A claim that an intent keeps is set after that.
writes.dropping[claims] = held
write_all()
return commit_all(lost, held, runs)
