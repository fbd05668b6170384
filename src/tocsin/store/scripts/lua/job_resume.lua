-- job_resume: put a paused job back in line, at its own due time or at a new one.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, blocked, events
-- ARGV   epoch, clock, session, seq, id, expected version, due (0: its own)
-- RETURN {1, code, head}: 0 no such job, 1 resumed, 2 will not be paused when its run or wait ends, 3 was not paused,
--        4 changed meanwhile (read it again); head as in job_put
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include record_edit
--@include claim_intents
--@include events
local record = redis.call('HGET', jobs, id)
if not record then return unchanged(call, {1, 0, -1}) end
local raw = redis.call('HGET', claims, id)
local code, line = 3, -1
local not_before = redis.call('ZSCORE', paused, id)
if not_before then
  if tonumber(expected_version) > 0 and is_readable(record) and version_of(record) ~= tonumber(expected_version) then
    return unchanged(call, {1, 4, -1})
  end
  local claim = claim_if_readable(raw) or fresh_claim(tonumber(not_before))
  line = tonumber(due)
  local anew = line > 0 and line ~= claim.due
  -- Its own time: that of its run, or where a retry waits, the end of its backoff.
  if not anew then line = tonumber(not_before) end
  if anew and is_readable(record) and is_recurring(record) then skip(id, first_owed(claim), line, WHY.PAUSED) end
  if anew and is_readable(record) then
    local counted_now = with_uncounted(record, claim)
    if counted_now ~= record then set(jobs, id, counted_now) end
  end
  leave(paused, id)
  enter_line(id, line, not anew and claim or nil, record)
  if anew or (is_default_claim(claim) and line == claim.due) then drop(claims, id) end
  code = 1
elseif raw and redis.call('ZSCORE', blocked, id) then
  drop(claims, id)
  code = 2
elseif redis.call('ZSCORE', working, id) then
  local claim = claim_if_readable(raw)
  if claim and has(claim.intent, PAUSE) then
    claim.intent = without(claim.intent, PAUSE)
    set(claims, id, write_claim(claim))
    code = 2
  end
end
if code == 3 then return unchanged(call, {1, 3, -1}) end
write_all()
return commit(call, {1, code, line}, 'resume', {id})
