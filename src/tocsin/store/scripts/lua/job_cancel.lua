-- job_cancel: cancel a one-shot that waits, or ask the worker of a working run to stop.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, errors, done, results, unnamed, blocked,
--        needs, watchers, outbox, events
-- ARGV   epoch, clock, session, seq, id, due (0: any), most: how many outcomes of unnamed jobs the partition keeps
-- RETURN {1, code, owner, token, carry}: 0 nothing to cancel, 1 cancelled, 2 asked its owner; carry as in run_finish
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include line_entry
--@include settle
--@include forget_outcomes
local record = redis.call('HGET', jobs, id)
local raw = redis.call('HGET', claims, id)
local claim = claim_if_readable(raw)
local want = tonumber(due)
if not is_readable(record) then return unchanged(call, {1, 0, '', 0, 0}) end
if redis.call('ZSCORE', working, id) then
  -- A one-shot has one run only, so an unreadable claim must be of the run that is meant.
  claim = claim or fresh_claim(want > 0 and not is_recurring(record) and want or now)
  if want > 0 and claim.due ~= want then return unchanged(call, {1, 0, '', 0, 0}) end
  claim.intent = with(claim.intent, CANCEL)
  set(claims, id, write_claim(claim))
  write_all()
  return commit(call, {1, 2, claim.owner, claim.token, 0}, 'cancel', {id})
end
if is_recurring(record) then return unchanged(call, {1, 0, '', 0, 0}) end

local function end_it(score)
  local at = claim and claim.due or score
  if parent_of(id) then skip(id, at, at + 1, WHY.CANCELLED) end
  cancel_job(id, record, '')
  write_all()
  forget_outcomes(tonumber(most))
  return commit(call, {1, 1, '', 0, call.carry}, 'cancel', {id})
end

-- `score`: when it is due where no claim knows better; nil if that is unknown.
local function is_wanted(score) return want == 0 or want == (claim and claim.due or score or want) end

local entry = line_entry_of(id)
if entry and is_wanted(entry.due) then
  leave_line(id, entry)
  return end_it(entry.due)
end
for _, stage in ipairs({paused, parked, blocked}) do
  local score = redis.call('ZSCORE', stage, id)
  -- The score of a parked job is no time.
  local at = score and stage ~= parked and tonumber(score) or nil
  if score and is_wanted(at) then
    leave(stage, id)
    if stage == blocked then drop(needs, id) end
    return end_it(at or now)
  end
end
return unchanged(call, {1, 0, '', 0, 0})
