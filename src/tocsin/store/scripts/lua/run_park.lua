-- run_park: set aside runs whose record this worker could not read, or whose next due time it could not tell. Other
--        workers try after a while, longer each time; a person may unpark them sooner.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, errors, done, results, unnamed, watchers,
--        outbox, events
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, errors, notes, outcomes, waits; errors
--        and notes as in run_retry; outcome: of a run that has ended, as in run_finish, or 4 for one that has not;
--        wait: ms until another worker tries, 0 for a while that grows; both columns may be left out if none has ended
-- RETURN {1, lost, head, carry} as run_finish
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include counts
--@include order
--@include settle_each
--@include requeue

local NOT_ENDED = 4
local ids, tokens, failures, notes, outcomes, waits = unpack(cmsgpack.unpack(items))
outcomes, waits = outcomes or {}, waits or {}
local tally = {}

local function set_aside(id, claim, failure, wait)
  release_claim(claim)
  local times = unread_times(claim.intent) + 1
  claim.intent = with_unread_times(claim.intent, times)
  set(claims, id, write_claim(claim))
  set(errors, id, failure)
  enter(parked, wait > 0 and now + wait or read_again_at(now, times), id)
end

local function park(id, claim, failure, wait)
  local verdict, put = apply_intent(id, claim, nil, 0, false)
  if verdict then return end
  if not put then return set_aside(id, claim, failure, wait) end
  -- An edit has replaced what could not be read.
  set(jobs, id, put)
  requeue(id, claim, claim.due, put)
end

-- The run counts as it ended, and is not run again.
local function park_ended(id, claim, failure, wait, outcome)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  tally[outcome] = (tally[outcome] or 0) + 1
  local succeeded, failed = outcome == SUCCEEDED and 1 or 0, outcome == FAILED and 1 or 0
  record = with_uncounted(counted(record, succeeded, failed, outcome == SKIPPED and 0 or 1), claim)
  claim.attempt, claim.recoveries, claim.intent = 0, 0, without(claim.intent, CANCEL)
  notify_watchers(id, outcome)
  -- A pause keeps what is known of the run; an edit with a time of its own begins anew.
  local anew = has(claim.intent, PUT) and claim.put_due > 0
  local verdict, put = apply_intent(id, claim, record, 0, anew or not has(claim.intent, PAUSE))
  if verdict then return end
  set(jobs, id, put)
  set_aside(id, claim, failure, wait)
end

-- Runs that have ended come first, because the event says how the first of its ids ended.
local ended, others, runs = {}, {}, {}
local _, lost = settle_each(ids, tokens, function(i, id, claim)
  local outcome = outcomes[i] or NOT_ENDED
  note(id, notes[i])
  if outcome == NOT_ENDED then
    others[#others + 1] = id
    park(id, claim, failures[i], waits[i] or 0)
  else
    ended[#ended + 1] = id
    runs[#runs + 1] = event_run(claim.due, claim.attempt, outcome)
    park_ended(id, claim, failures[i], waits[i], outcome)
  end
end)
local parked_ids = ended
for _, id in ipairs(others) do parked_ids[#parked_ids + 1] = id end
if #parked_ids == 0 then return nothing_held(lost) end
write_all()
for outcome, times in pairs(tally) do count_up(COUNTERS[outcome], times) end
return commit(call, {1, lost, head_or_apart(), call.carry}, 'park', parked_ids, runs)
