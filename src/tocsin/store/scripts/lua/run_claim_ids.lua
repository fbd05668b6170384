-- run_claim_ids: give this worker those of the named jobs that are due, for workers that may run only some.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, suspects, repeated, items, most
--        items: msgpack [id] * n, at most 1000, those first that are wanted most; most: give no more than so many, if said
-- RETURN as run_claim and one more, dues: until when each of the named ones waits now, -1 if it does not; next is the
--        first of them; no dues from a paused queue
-- USES   call, records, claims, moves, line, widest, take
local named = cmsgpack.unpack(items)

local function due_of_score(text)
  local score = tonumber(text)
  return math.floor(is_apart(score) and due_apart(score) or score)
end

local function with_rest(reply)
  local soonest, dues = -1, {}
  for i, score in ipairs(redis.call('ZMSCORE', waiting, unpack(named))) do
    dues[i] = score and due_of_score(score) or -1
    if score and (soonest < 0 or dues[i] < soonest) then soonest = dues[i] end
  end
  reply[7], reply[9], reply[10] = soonest, 0, dues
  return reply
end

if answered then return with_rest(told(unpack(answered))) end
if now > tonumber(lease) then return {-3, now} end
if paused_now then
  local none = cmsgpack.pack({})
  found_nothing({now, 0, none, 0, -1})
  return {1, now, 0, none, {}, '', -1, 0, 0}
end

local ids, scores, aside, seen = {}, {}, {}, {}
most = tonumber(most or 1000)
local in_line = redis.call('ZMSCORE', waiting, unpack(named))
local set_aside = redis.call('ZMSCORE', parked, unpack(named))
for i, id in ipairs(named) do
  local due = in_line[i] and due_of_score(in_line[i])
  if seen[id] or #ids + #aside >= most then
    -- Named twice, claimed once.
  elseif due and due <= now then
    ids[#ids + 1] = id
    scores[#scores + 1] = in_line[i]
  elseif set_aside[i] and tonumber(set_aside[i]) <= now then
    aside[#aside + 1] = id
  end
  seen[id] = true
end
if #ids > 0 then take(waiting, ids, scores, 1000, 1) end
if #aside > 0 then take_parked(aside, 2000) end
return with_rest(finish_taking(-1))
