-- run_claim_ordered: as run_claim, for queues that are served by priority, or by whose turn it is.
-- KEYS   meta      HASH    epoch, seq, fence, counters, limits
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, suspects, repeated, limit, cap
-- RETURN as run_claim
-- USES   call, records, claims, moves, line, take, limits, parked, pick
local function with_rest(reply, since)
  local left, next_due = ready_count() - held_back, head()
  if full or wait_until then
    next_due, left = wait_until or -1, 0
  elseif held_back > 0 and #taken == 0 and #parkings == 0 then
    -- All that this worker could take is held back: to be asked for again when what it tries may have ended.
    next_due = now + 100
  end
  reply[7], reply[9] = next_due, math.max(left, 0)
  if since >= 0 then reply[10], reply[11] = {}, since end
  return reply
end

if answered then
  allowed(1)
  return with_rest(told(unpack(answered)), answered[5])
end
if now > tonumber(lease) then return {-3, now} end
if paused_now then
  local none = cmsgpack.pack({})
  found_nothing({now, 0, none, 0, -1})
  return {1, now, 0, none, {}, '', -1, 0, 0}
end

local function claim_of(id) return claim_if_readable(redis.call('HGET', claims, id)) end

-- As many as there are, until their records are about as large as an answer may be. How many that were.
local function enter_due(ids, scores)
  local read = 0
  for i, id in ipairs(ids) do
    if read >= LARGEST then return i - 1 end
    local claim, record = not all_fresh and claim_of(id), redis.call('HGET', jobs, id)
    read = read + #(record or '')
    leave(waiting, id)
    -- Those that fall due together have no first: they stand by id, as they did, whichever page they come with.
    enter_ready(id, claim and claim.due or math.max(tonumber(scores[i]), 0), claim and claim.place or 0, record)
  end
  return #ids
end

-- Those that this worker can take. What it cannot stays aside: it would be set aside again at once, for ever.
local function enter_parked(ids)
  local moved = 0
  for _, id in ipairs(ids) do
    local raw, record = redis.call('HGET', claims, id), redis.call('HGET', jobs, id)
    local claim = claim_if_readable(raw)
    if claim and claim.due <= now then
      moved = moved + 1
      if understood(record) then
        leave(parked, id)
        enter_ready(id, claim.due, claim.place, record)
      else
        look_again(id, record, raw)
      end
    end
  end
  return moved
end

-- What has fallen due enters the line, and what was set aside for such as us, and tenants who have rested. It is written
-- before the picking, which so sees all; either half leaves everything in order.
local function promote()
  local found = redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 1000)
  local ids, scores = {}, {}
  for at = 1, #found, 2 do
    ids[#ids + 1], scores[#scores + 1] = found[at], found[at + 1]
  end
  local entered = enter_due(ids, scores)
  local moved = redis.call('ZCARD', parked) > 0 and enter_parked(parked_for_us(at_once)) or 0
  if wake_resting() or entered > 0 or moved > 0 then apply() end
end

promote()
limit = allowed(math.min(tonumber(limit), 1000))
if limit > 0 then pick(limit) end
local since = capped_since or -1
count_started(#taken, function() return ready_count() > #taken + #parkings end)
return with_rest(finish_taking(since), since)
