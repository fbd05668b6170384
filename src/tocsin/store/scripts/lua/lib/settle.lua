-- settle: end claims, and end jobs for good.
-- What a person asked for while a job was working goes before what its worker asks for.
--@include record_edit
--@include dependencies
--@include remember
--@include claim_intents
--@include store_again
--@include events

-- End a job for good: remember its outcome, and notify the jobs that wait for it.
-- Its outcome is remembered for `keep` seconds; without an outcome it was removed.
local function end_job(id, keep, outcome, result, is_unnamed_job)
  if notify_watchers(id, outcome or CANCELLED) and outcome == SUCCEEDED then
    if keep == 0 then result = NOT_KEPT end
    -- An hour, for jobs that are about to wait for it. Any other end counts like none at all for them.
    keep = math.max(keep, 3600)
    -- Dependents that are being put must find it, so the bound on unnamed outcomes leaves it alone.
    is_unnamed_job = false
  end
  drop(jobs, id)
  drop(claims, id)
  drop(errors, id)
  if keep > 0 then remember(id, keep, outcome, result, is_unnamed_job) end
end

-- Its outcome is remembered as its record says.
local function cancel_job(id, record, why)
  end_job(id, keep_of(record), CANCELLED, why, is_unnamed(record))
end

-- The job that an extra run belongs to (extra_run.lua); nil for any other id.
local function parent_of(id)
  local at = string.find(id, '\31', 1, true)
  return at and string.sub(id, 1, at - 1)
end

-- Where an edit during a run ends the cadence that the run belongs to.
local function cadence_end(claim) return math.min(claim.put_first, claim.put_due) end

-- An intent gives up the run of a schedule before it has ended, and with it its tick; where the job itself goes on
-- elsewhere, all ticks that were due.
local function give_up(id, claim, recurring)
  local why = has(claim.intent, CANCEL) and WHY.CANCELLED or WHY.EDITED
  if parent_of(id) then
    skip(id, claim.due, claim.due + 1, why)
  elseif recurring then
    skip(id, first_owed(claim), math.max(claim.due + 1, math.min(cadence_end(claim), now + 1)), why)
  end
end

-- Follow a remove, put or pause that was asked for while the job was working, and say which, with the record as it is
-- then.
--   record      the job's, if the caller has read it
--   next_due    0 where the run keeps its due and attempt
--   not_before  when that run may go on, if not at its due time
-- With no such intent, or with an edit that leaves the run alone: nil, and the record that is to be stored.
local function apply_intent(id, claim, record, next_due, ended, not_before)
  local intent, due, recurring = claim.intent, next_due, false
  if has(intent, REMOVE) then
    end_job(id, 0)
    return 'removed'
  end
  if has(intent, PUT) then
    local old = record or redis.call('HGET', jobs, id)
    record = old and with_counts_of(claim.put_record, old) or claim.put_record
    store_again(record)
    recurring = is_readable(old) and is_recurring(old)
    if claim.put_due > 0 then due = claim.put_due end
    if due == 0 and ended then return nil, record end
    if due > 0 and not ended then give_up(id, claim, recurring) end
  end
  if due > 0 and record then record = with_uncounted(record, claim) end
  if has(intent, PAUSE) and not (ended and due == 0) then
    set(claims, id, write_claim(due > 0 and fresh_claim(due) or release_claim(claim)))
    enter(paused, due > 0 and due or not_before or claim.due, id)
    if record then set(jobs, id, record) end
    return 'paused', record
  end
  if has(intent, PUT) and claim.put_due > 0 then
    drop(claims, id)
    drop(errors, id)
    enter_line(id, due, nil, record)
    set(jobs, id, record)
    return 'put', record
  end
  return nil, record
end
