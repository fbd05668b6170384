-- run_claim_ordered: as run_claim, for queues that are served by priority, or by whose turn it is.
-- KEYS   meta      HASH    epoch, seq, fence, counters, limits
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        parked    ZSET    id -> handler digest, 0 if unreadable
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, suspects, limit, cap
-- RETURN as run_claim
-- USES   call, records, claims, moves, line, limits, take, parked, pick
local function with_rest(reply)
  local left, next_due = ready_count() - held_back, head()
  if full or wait_until then
    next_due, left = wait_until or -1, 0
  elseif held_back > 0 and left <= 0 then
    -- All in line are held back: to be asked for again when what this worker tries may have ended.
    next_due = now + 100
  end
  reply[7], reply[9] = next_due, math.max(left, 0)
  return reply
end

if answered then return with_rest(told(unpack(answered))) end
if now > tonumber(lease) then return {-3, now} end
if paused_now then
  unchanged({now, 0, {}, 0})
  return {1, now, 0, {}, {}, {}, -1, 0, 0}
end

local function enter_again(ids, scores, from)
  for i, id in ipairs(ids) do
    local raw = not (all_fresh and from == waiting) and redis.call('HGET', claims, id)
    local claim = raw and #raw >= 25 and read_claim(raw)
    if from == waiting or (claim and claim.due <= now and not has(claim.intent, UNREADABLE)) then
      leave(from, id)
      enter_ready(id, claim and claim.due or math.max(tonumber(scores[i]), 0), claim and claim.place or nil)
    end
  end
end

-- What has fallen due enters the line, and what was set aside for such as us, and tenants who have rested. It is written
-- before the picking, which so sees all; either half leaves everything in order.
local function promote()
  local found = redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'WITHSCORES', 'LIMIT', 0, at_once())
  local ids, scores = {}, {}
  for at = 1, #found, 2 do
    ids[#ids + 1], scores[#scores + 1] = found[at], found[at + 1]
  end
  enter_again(ids, scores, waiting)
  local aside = redis.call('ZCARD', parked) > 0 and parked_for_us(at_once()) or {}
  enter_again(aside, {}, parked)
  if wake_resting() or #ids > 0 or #aside > 0 then apply() end
end

promote()
limit = allowed(math.min(tonumber(limit), 1000))
if limit > 0 then pick(limit) end
count_started(#taken, (full or wait_until) and ready_count() > 0)
return with_rest(finish_taking())
