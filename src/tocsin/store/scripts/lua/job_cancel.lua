-- job_cancel: cancel a one-shot that waits, or ask the worker of a working run to stop.
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
--        blocked   ZSET    id -> not before ms
--        needs     HASH    id -> what it waits for
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, id, due (0: any), most: how many outcomes of unnamed jobs the partition keeps
-- RETURN {1, code, owner, token, carry}: 0 nothing to cancel, 1 cancelled, 2 asked its owner; carry as in run_finish
-- USES   call, records, claims, moves, line, endings, settle, forget
if answered then return answered end
local record = redis.call('HGET', jobs, id)
local raw = redis.call('HGET', claims, id)
local claim = claim_if_readable(raw)
local want = tonumber(due)
if not readable(record) then return unchanged({1, 0, '', 0, 0}) end
if redis.call('ZSCORE', working, id) then
  -- Where nobody can read when its run is due, a one-shot has no other.
  claim = claim or fresh_claim(want > 0 and not is_recurring(record) and want or now)
  if want > 0 and claim.due ~= want then return unchanged({1, 0, '', 0, 0}) end
  claim.intent = with(claim.intent, CANCEL)
  set(claims, id, write_claim(claim))
  apply()
  return commit({1, 2, claim.owner, claim.token, 0}, 'cancel', {id})
end
if is_recurring(record) then return unchanged({1, 0, '', 0, 0}) end

local function end_it(score)
  local at = claim and claim.due or score
  if parent_of(id) then skip(id, at, at + 1, WHY.CANCELLED) end
  cancel_job(id, record, '')
  apply()
  forget(tonumber(most))
  return commit({1, 1, '', 0, to_carry}, 'cancel', {id})
end

-- `score`: when it is due where no claim knows better; nil if nobody knows.
local function is_wanted(score) return want == 0 or want == (claim and claim.due or score or want) end

local spot = spot_of(id)
if spot and is_wanted(spot.due) then
  leave_line(id, spot)
  return end_it(spot.due)
end
for _, stage in ipairs({paused, parked, blocked}) do
  local score = redis.call('ZSCORE', stage, id)
  -- Among the parked a score is no time.
  local at = score and stage ~= parked and tonumber(score) or nil
  if score and is_wanted(at) then
    leave(stage, id)
    if stage == blocked then drop(needs, id) end
    return end_it(at or now)
  end
end
return unchanged({1, 0, '', 0, 0})
