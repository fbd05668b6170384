-- watching: check whether other jobs can wait for a job.
--@include record_edit
--@include outcome
--@include outcome_entry
--@include outbox

-- w: yes; l: not yet, an earlier end of it is still to be carried; r: it recurs, so it never ends; g: it does not
-- exist; 0 to 3: its outcome, because it has ended (0 also if it is dead).
local function chance_to_watch(id)
  local record = redis.call('HGET', jobs, id)
  if not record then
    local outcome = outcome_of(redis.call('HGET', results, id))
    -- An outcome that somebody garbled counts as none.
    if outcome then return outcome <= CANCELLED and string.format('%d', outcome) or 'g' end
    local pending = pending_end(id)
    return pending and string.match(pending, '%z([0-3])$') or 'g'
  end
  if is_readable(record) and is_recurring(record) then return 'r' end
  if redis.call('ZSCORE', dead, id) then return string.format('%d', FAILED) end
  return pending_end(id) and 'l' or 'w'
end
