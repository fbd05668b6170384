-- ending: end a job for good: remember its outcome, and notify the jobs that wait for it.
--@include record_fields
--@include dependencies
--@include remember

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
