-- score_mend: give jobs that wait or work with a score that is none of ours one that is. No job leaves its stage.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, items: msgpack [id] * n, at most 1000
-- RETURN {1, codes}: a digit per id: 0 left alone, 1 mended
-- USES   call, records, claims, moves, apart, scores, mends
if answered then return answered end
-- The end of the year 9999: no time that a person can write is later.
local LATEST = 253402300799999

local function claim_of(id)
  local raw = redis.call('HGET', claims, id)
  if not raw then return nil end
  local fine, claim = pcall(read_claim, raw)
  return fine and claim or nil
end

-- Whoever holds it is believed until its timeout is over, counted from now; then recovery brings it back.
local function new_deadline(id, score)
  if not is_odd(score, now) then return nil end
  local record = redis.call('HGET', jobs, id)
  return now + (readable(record) and timeout_of(record) or 60000)
end

-- What the score was meant to say cannot be known: a due time or the end of a backoff, in seconds of which clock?
-- The run's claim knows when it is due. Without one it is due now: what is too low is so already, and what is too
-- high would never be. A low due time on which claim and score agree has been claimed before, and keeps its run id.
local function new_due(id, score)
  local record = redis.call('HGET', jobs, id)
  if not record then return nil end
  -- A single run in a far century may be what somebody asked for; an interval is not that long.
  local latest = readable(record) and is_recurring(record) and now + CENTURY or LATEST
  if score >= EARLIEST and score <= latest then return nil end
  local claim = claim_of(id)
  if is_suspects(score, claim) then return nil end
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

return mend_each(cmsgpack.unpack(items), mend)
