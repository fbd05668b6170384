-- run_claim: give this worker the runs that are due, at most `limit` and about 4 MiB of them.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        parked    ZSET    id -> handler digest, 0 if unreadable
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, suspects, limit
--        lease: no claim after this server time; handlers: the u32 digests this worker knows, '' for any;
--        timeout: ms instead of the records' own, 0 for theirs; suspects: how many recovered runs at most
-- RETURN {1, now, token, ids, records, claims, next, parked, left}: next is when the first of those left is due, -1
--        for none; parked is how many were set aside for workers that know them; left is how many more are due now;
--        nothing from a paused queue; {-3, now}: the lease is over
-- USES   call, records, claims, moves, take
local function with_rest(reply)
  local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
  local next_due, left = first[2] and tonumber(first[2]) or -1, 0
  if next_due >= 0 and next_due <= now then left = redis.call('ZCOUNT', waiting, '-inf', now) - held_back end
  if held_back > 0 and left <= 0 then
    -- All that is due is held back: to be asked for again when what this worker tries may have ended.
    local following = redis.call('ZRANGEBYSCORE', waiting, '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES',
      'LIMIT', 0, 1)
    next_due = math.min(following[2] and tonumber(following[2]) or math.huge, now + 100)
  end
  reply[7], reply[9] = next_due, math.max(left, 0)
  return reply
end

if answered then return with_rest(told(unpack(answered))) end
if now > tonumber(lease) then return {-3, now} end
if redis.call('HGET', meta, 'paused') then
  unchanged({now, 0, {}, 0})
  return {1, now, 0, {}, {}, {}, -1, 0, 0}
end

limit = math.min(tonumber(limit), 1000)
-- Some more than wanted where some may be held back.
local looked_at = all_fresh and limit or limit + 50
local found = redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'WITHSCORES', 'LIMIT', 0, looked_at)
local ids, scores, n = {}, {}, 0
for at = 1, #found, 2 do
  n = n + 1
  ids[n], scores[n] = found[at], found[at + 1]
end
if #ids > 0 then take(waiting, ids, scores, limit) end

-- What is parked is found by its handler; what nobody could read is tried again by those who may.
local function parked_for_us(most)
  if not known then return redis.call('ZRANGE', parked, 0, most - 1) end
  local aside = redis.call('ZRANGEBYSCORE', parked, 0, 0, 'LIMIT', 0, 50)
  for at = 1, #handlers, 4 do
    local digest = struct.unpack('>I4', handlers, at)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', parked, digest, digest, 'LIMIT', 0, most)) do
      aside[#aside + 1] = id
    end
    if #aside >= most + 50 then break end
  end
  return aside
end

if #taken < limit and redis.call('ZCARD', parked) > 0 then
  local aside = parked_for_us(limit - #taken)
  if #aside > 0 then take_parked(aside, limit + #parkings) end
end
return with_rest(finish_taking())
