-- run_park: set aside runs whose record this worker could not read, or jobs of which it could not tell when they are due
-- next. Others try after a while, longer each time; a person may unpark them sooner.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, errors, notes, outcomes, waits; errors and notes
--        as in run_bury; outcome: of a run that has ended, as in run_finish, or 4 for one that has not; wait: ms until
--        somebody tries again, 0 for a while that grows; both columns may be left out if none has ended
-- RETURN {1, lost, head, carry} as run_finish
-- USES   call, records, claims, moves, line, endings, widest, settle
if answered then return answered end
local NOT_ENDED = 4
local COUNTERS = {[FAILED] = 'failed', [SUCCEEDED] = 'succeeded', [SKIPPED] = 'skipped', [CANCELLED] = 'cancelled'}
local ids, tokens, failures, told_of, outcomes, waits = unpack(cmsgpack.unpack(items))
outcomes, waits = outcomes or {}, waits or {}
local raws = claims_of(ids)
local lost, told, tally = {}, {}, {}

local function set_aside(id, claim, failure, wait)
  let_go(claim)
  local times = unread_times(claim.intent) + 1
  claim.intent = with_unread_times(claim.intent, times)
  set(claims, id, write_claim(claim))
  set(errors, id, failure)
  enter(parked, wait > 0 and now + wait or read_again_at(times), id)
end

local function park(id, claim, failure, wait)
  local verdict, put = obeyed(id, claim, nil, 0, false)
  if verdict then return end
  if not put then return set_aside(id, claim, failure, wait) end
  -- Edited meanwhile: what could not be read is there no more.
  set(jobs, id, put)
  go_back(id, claim, claim.due, put)
end

-- The run counts as it ended, and nobody runs it again.
local function park_ended(id, claim, failure, wait, outcome)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  tally[outcome] = (tally[outcome] or 0) + 1
  local succeeded, failed = outcome == SUCCEEDED and 1 or 0, outcome == FAILED and 1 or 0
  record = caught_up(counted(record, succeeded, failed, outcome == SKIPPED and 0 or 1), claim)
  claim.attempt, claim.recoveries, claim.intent = 0, 0, without(claim.intent, CANCEL)
  tell_watchers(id, outcome)
  -- A pause keeps what is known of the run; an edit with a time of its own begins anew.
  local anew = has(claim.intent, PUT) and claim.put_due > 0
  local verdict, put = obeyed(id, claim, record, 0, anew or not has(claim.intent, PAUSE))
  if verdict then return end
  set(jobs, id, put)
  set_aside(id, claim, failure, wait)
end

-- Those that have ended come first: the event tells how the first of its ids ended.
local ends, others = {}, {}
for i, id in ipairs(ids) do
  local claim, outcome = held_by(raws[i], tokens[i], owner), outcomes[i] or NOT_ENDED
  if claim then
    stop(id, raws[i])
    note(id, told_of[i])
    if outcome == NOT_ENDED then
      others[#others + 1] = id
      park(id, claim, failures[i], waits[i] or 0)
    else
      told[#told + 1] = id
      ends[#ends + 1] = struct.pack('>I8I4B', claim.due, claim.attempt, outcome)
      park_ended(id, claim, failures[i], waits[i], outcome)
    end
  else
    lost[#lost + 1] = id
  end
end
for _, id in ipairs(others) do told[#told + 1] = id end
if #told == 0 then return nothing_held(lost) end
apply()
for outcome, times in pairs(tally) do count_up(COUNTERS[outcome], times) end
return commit({1, lost, head_or_apart(), to_carry}, 'park', told, ends)
