-- run_claim_ordered: as run_claim, for queues that are served by priority, or by whose turn it is.
-- KEYS   meta      HASH    epoch, seq, fence, counters, limits
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, suspects, repeated, limit, cap, unread
-- RETURN as run_claim
-- USES   call, records, claims, moves, line, widest, take, limits, parked, suspects, pick
local function with_rest(reply, since)
  local left, next_due = ready_count(), head()
  local _, any_apart = first_waiting()
  if full or wait_until then
    next_due, left = wait_until or -1, 0
  elseif any_apart and (next_due < 0 or next_due > now + 100) then
    -- To be asked for again when what this worker tries may have ended.
    next_due = now + 100
  end
  reply[7], reply[9] = next_due, left
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
    if claim and claim.recoveries > 1 then
      stand_apart(id, claim.due, record)
    else
      -- Those that fall due together have no first: they stand by id, as they did, whichever page they come with.
      enter_ready(id, claim and claim.due or math.max(tonumber(scores[i]), 0), claim and claim.place or 0, record)
    end
  end
  return #ids
end

-- What has fallen due enters the line, and what was set aside for such as us, and tenants who have rested; and suspects
-- that this worker may try. It is written before the picking, which so sees all; either half leaves everything in order.
local function promote(most_suspects)
  local found = redis.call('ZRANGEBYSCORE', waiting, '(-2251799813685248', now, 'WITHSCORES', 'LIMIT', 0, 1000)
  local ids, scores = {}, {}
  for at = 1, #found, 2 do
    ids[#ids + 1], scores[#scores + 1] = found[at], found[at + 1]
  end
  local any = enter_due(ids, scores) > 0
  if redis.call('ZCARD', parked) > 0 and enter_parked(most_suspects) then any = true end
  if wake_resting() then any = true end
  if any then apply() end
  -- Also those that have just come to stand there.
  if not all_fresh and call_up(most_suspects) then apply() end
end

limit = allowed(math.min(tonumber(limit), 1000))
promote(math.min(suspects_left, limit))
local not_in_line = #parkings
if limit > 0 then pick(limit) end
local since = capped_since or -1
count_started(#taken, function() return ready_count() > #taken + #parkings - not_in_line + apart_count end)
return with_rest(finish_taking(since), since)
