-- run_retry: an attempt failed and another will follow, not before its backoff.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, errors, done, results, unnamed, watchers, outbox,
--        events
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, delays in ms, errors, notes; note:
--        what the event says about the attempt, '' for nothing
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

local ids, tokens, delays, failures, notes = unpack(cmsgpack.unpack(items))
local runs, parent_failures = {}, {}

local function retry(id, claim, delay, failure)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  record = counted(record, 0, 0, 1)
  note_parent_failure(parent_failures, id, 0)
  claim.attempt = claim.attempt + 1
  -- A cancelled run of a recurring job comes back at once: the worker that gets it plans the next one.
  local not_before = has(claim.intent, CANCEL) and now or now + delay
  local verdict, put = apply_intent(id, claim, record, 0, false, not_before)
  if verdict then return end
  if has(claim.intent, CANCEL) and not is_recurring(record) then
    give_up(id, claim, false)
    return cancel_job(id, record, '')
  end
  set(jobs, id, put)
  set(errors, id, failure)
  requeue(id, claim, not_before, put)
end

local held, lost = settle_each(ids, tokens, function(i, id, claim)
  runs[#runs + 1] = event_run(claim.due, claim.attempt, FAILED)
  note(id, notes[i])
  retry(id, claim, delays[i], failures[i])
end)
if #held == 0 then return nothing_held(lost) end
write_all()
count_parent_failures(parent_failures)
count_up('retried', #held)
return commit(call, {1, lost, head_or_apart(), call.carry}, 'retry', held, runs)
