-- run_claim_ids: give this worker the named jobs that are due, for workers that may run only some jobs.
-- ORDERS due
-- KEYS   meta, sessions, jobs, waiting, working, claims, parked, events
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, suspects, repeated, items, most
--        items: msgpack [id] * n, at most 1000, the most wanted first; most: give no more than so many, if
--        said
-- RETURN as run_claim and one more, dues: until when each of the named ones waits now, -1 if it does not; next is the
--        first of them; no dues from a paused queue
--@include session
local call = begin_call()
if call.refused then return call.refused end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include claim_batch
--@include claim_again
local named = cmsgpack.unpack(items)

local function with_rest(reply)
  local soonest, dues = -1, {}
  for i, score in ipairs(redis.call('ZMSCORE', waiting, unpack(named))) do
    dues[i] = score and split_score(tonumber(score)) or -1
    if score and (soonest < 0 or dues[i] < soonest) then soonest = dues[i] end
  end
  reply[7], reply[9], reply[10] = soonest, 0, dues
  return reply
end

if call.answered then return with_rest(repeat_reply(unpack(call.answered))) end
local batch = begin_batch()
local refused = refusal(batch)
if refused then return refused end

local ids, scores, aside, seen = {}, {}, {}, {}
most = tonumber(most or 1000)
local in_line = redis.call('ZMSCORE', waiting, unpack(named))
local set_aside_at = redis.call('ZMSCORE', parked, unpack(named))
for i, id in ipairs(named) do
  local due = in_line[i] and split_score(tonumber(in_line[i]))
  if seen[id] or #ids + #aside >= most then
    -- A job that is named twice is claimed once.
  elseif due and due <= now then
    ids[#ids + 1] = id
    scores[#scores + 1] = in_line[i]
  elseif set_aside_at[i] and tonumber(set_aside_at[i]) <= now then
    aside[#aside + 1] = id
  end
  seen[id] = true
end

-- Parked jobs whose handler this worker knows are claimed straight from there.
local function take_parked()
  local fit, dues = {}, {}
  for i, raw in ipairs(redis.call('HMGET', claims, unpack(aside))) do
    local claim = claim_if_readable(raw) or fresh_claim(now)
    if claim.due <= now then
      fit[#fit + 1] = aside[i]
      dues[#dues + 1] = string.format('%.0f', claim.due)
    end
  end
  if #fit > 0 then take(batch, parked, fit, dues, 2000, 1) end
end

if #ids > 0 then take(batch, waiting, ids, scores, 1000, 1) end
if #aside > 0 then take_parked() end
return with_rest(finish_claims(batch, -1))
