-- audit_mend_score: give jobs that wait or work with a score that is none of ours one that is. No job leaves its stage.
-- KEYS   meta, sessions, jobs, waiting, working, claims, events
-- ARGV   epoch, clock, session, seq, items: msgpack [id] * n, at most 1000
-- RETURN {1, codes}: a digit per id: 0 left alone, 1 mended
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include record_edit
--@include record_claim
--@include claim_fields
--@include audit
--@include mend_each
local function claim_of(id) return (claim_if_readable(redis.call('HGET', claims, id))) end

-- The worker that holds it has until its timeout is over, counted from now; then recovery brings it back.
local function new_deadline(id, score)
  if not is_foreign_score(score, now) then return nil end
  local record = redis.call('HGET', jobs, id)
  return now + (is_readable(record) and timeout_of(record) or 60000)
end

-- What the score was meant to say cannot be known: a due time or the end of a backoff, in seconds of which clock?
-- The run's claim knows when it is due. Without one it is due now: what is too low is so already, and what is too
-- high would never be. A low due time on which claim and score agree has been claimed before, and keeps its run id.
local function new_due(id, score)
  local record = redis.call('HGET', jobs, id)
  if not record then return nil end
  -- A single run in a far century may be what somebody asked for; an interval is not that long.
  local latest = is_readable(record) and is_recurring(record) and now + CENTURY or LATEST
  if score >= EARLIEST and score <= latest then return nil end
  local claim = claim_of(id)
  if is_suspects_score(score, claim) then return nil end
  if not claim then return now end
  if claim.due > latest then
    claim.due = now
    set(claims, id, write_claim(claim))
  end
  return claim.due ~= score and claim.due or nil
end

local function mend(id)
  for stage, better in pairs({[working] = new_deadline, [waiting] = new_due}) do
    local score = redis.call('ZSCORE', stage, id)
    local new = score and better(id, number_of(score))
    if new then
      enter(stage, string.format('%.0f', new), id)
      return true
    end
  end
  return false
end

local codes, mended = mend_each(cmsgpack.unpack(items), mend)
local reply = {1, codes}
if #mended == 0 then return unchanged(call, reply) end
apply()
return commit(call, reply, 'mend', mended)
