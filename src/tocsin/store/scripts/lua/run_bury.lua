-- run_bury: one-shot runs are out of retries, or were recovered too often: they are dead, with their error.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, dead, errors, done, results, unnamed, watchers,
--        outbox, events
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, errors, notes as in run_retry
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

local ids, tokens, failures, notes = unpack(cmsgpack.unpack(items))
local runs, parent_failures = {}, {}

local function bury(id, claim, failure)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  note_parent_failure(parent_failures, id, 1)
  local verdict, put = apply_intent(id, claim, counted(record, 0, 1, 1), 0, true)
  if verdict then return end
  if has(claim.intent, CANCEL) then return cancel_job(id, record, '') end
  set(jobs, id, with_uncounted(put, claim))
  set(errors, id, failure)
  set(claims, id, write_claim(release_claim(claim)))
  enter(dead, now, id)
  notify_watchers(id, FAILED)
end

local held, lost = settle_each(ids, tokens, function(i, id, claim)
  runs[#runs + 1] = event_run(claim.due, claim.attempt, FAILED)
  note(id, notes[i])
  bury(id, claim, failures[i])
end)
if #held == 0 then return nothing_held(lost) end
write_all()
count_parent_failures(parent_failures)
count_up('buried', #held)
return commit(call, {1, lost, head(), call.carry}, 'bury', held, runs)
