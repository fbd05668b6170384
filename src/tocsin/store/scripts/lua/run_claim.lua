-- run_claim: give this worker the runs that are due, at most `limit` and about 4 MiB of them.
-- ORDERS due
-- KEYS   meta, sessions, jobs, waiting, working, claims, parked, events
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, suspects, repeated, limit, cap, unread
--        lease: no claim after this server time; handlers: the u32 digests this worker knows, '' for any;
--        timeout: ms instead of the records' own, 0 for theirs; suspects: how many recovered runs at most;
--        repeated: '1' if the call was sent before and its answer did not come, '' otherwise;
--        cap: claim none while so many are working, of whatever worker; '' or left out for the queue's own cap alone;
--        unread: digests of handlers whose records this worker could not read lately; may be left out
-- RETURN {1, now, token, ids, records, stamps, next, parked, left}: ids in msgpack; stamps has for each its place u16,
--        due u48, attempt u32, recoveries u16, intent u8; next is when the first job that is left is due, -1 for none;
--        parked is how many were set aside for workers that know them; left is how many more are due now; then {} and
--        since when, if the queue's limits kept some back until this claim; nothing from a paused queue;
--        {-3, now}: the lease is over
--@include session
local call = begin_call()
if call.refused then return call.refused end
local now, writes = call.now, call.writes
--@include writes
--@include score
--@include claim_batch
local batch = begin_batch()
cap = cap ~= '' and cap or nil
-- Up to the end of this millisecond: below it stand places (score.lua).
local due_now = call.now_text .. '.9375'
limit = math.min(tonumber(limit), 1000)

-- A page of the line: ids, their scores, and how many these are.
local function find_due(from, looked_at, size)
  local found = redis.call('ZRANGEBYSCORE', waiting, from, due_now, 'WITHSCORES', 'LIMIT', looked_at, size)
  local ids, scores, n = {}, {}, 0
  for at = 1, #found, 2 do
    n = n + 1
    ids[n], scores[n] = found[at], found[at + 1]
  end
  return ids, scores, n
end

-- Jobs that leave the line are its first, behind those that stand apart: one range is quicker than as many names.
local function leave_first(count, apart)
  redis.call('ZREMRANGEBYRANK', waiting, apart, apart + count - 1)
  writes.leaving[waiting], writes.begun = nil, true
end

-- When the first job that is left is due, and how many are due now. A worker asks again for suspects when the one that
-- it tries may have ended.
local function rest()
  local first, any_apart = first_waiting(waiting)
  local next_due, left = first and split_score(tonumber(first)) or -1, 0
  if next_due >= 0 and next_due <= now then
    left = redis.call('ZCOUNT', waiting, any_apart and NOT_APART or '-inf', due_now)
  end
  if any_apart and (next_due < 0 or next_due > now + 100) then next_due = now + 100 end
  return next_due, left
end

-- Fast path: the queue is not limited, no run is unfinished but those at work, so that nothing is parked or stands
-- apart, and this worker understands all that is due. Claim it and return, before the functions for everything else are
-- created.
local is_limited = batch.max_active or cap or call.every or batch.capped_since
local is_ordinary = batch.no_unfinished_runs and batch.widest <= WIDE and not (is_limited or batch.is_paused)
if is_ordinary and not call.answered and now <= tonumber(lease) then
  local ids, scores, n = find_due('-inf', 0, limit)
  local records = n > 0 and redis.call('HMGET', jobs, unpack(ids))
  if claim_fresh(batch, ids, scores, records, 0, 1, n) > n then
    if n > 0 then
      leave_first(n, 0)
      apply()
    end
    local reply = commit_claims(batch, -1)
    reply[7], reply[9] = rest()
    return reply
  end
  -- The general path begins from the beginning.
  writes.entering, writes.setting, batch = {}, {}, begin_batch()
end

--@include order
--@include limits
-- A suspect that this worker may try comes back to the line.
local function enter_ready(id, due, place, record) enter(waiting, string.format('%.0f', due), id) end
--@include claim_again
--@include claim_aside
local limits = begin_limits(batch, cap)

local function with_rest(reply, since)
  local next_due, left = rest()
  if limits.full or limits.wait_until then next_due, left = limits.wait_until or -1, 0 end
  reply[7], reply[9] = next_due, left
  if since >= 0 then reply[10], reply[11] = {}, since end
  return reply
end

if call.answered then
  allowed(limits, 1)
  return with_rest(repeat_reply(unpack(call.answered)), call.answered[5])
end
local refused = refusal(batch)
if refused then return refused end

limit = allowed(limits, limit)
local function count_apart() return redis.call('ZCOUNT', waiting, '-inf', APART_ONLY) end

-- What stands aside enters the line first, and is written, so that it is found there in its turn.
local apart_before = 0
if not batch.no_unfinished_runs then
  local most_suspects = math.min(batch.suspects_left, limit)
  if limit > 0 and redis.call('ZCARD', parked) > 0 and enter_parked(batch, most_suspects) then write_all() end
  apart_before = count_apart()
  if apart_before > 0 and call_suspects(batch, most_suspects) then
    write_all()
    apart_before = count_apart()
  end
end
local not_in_line = batch.parked

-- Claim page by page: nothing leaves the line before all pages were looked at. A page has some more than wanted where
-- some may be sent apart. Look behind those, but not without end: the server answers nobody else meanwhile.
local function claim_due()
  local size, from = limit, '-inf'
  if not batch.no_unfinished_runs then size, from = limit + 50, NOT_APART end
  local looked_at, n = 0, 0
  repeat
    local ids, scores
    ids, scores, n = find_due(from, looked_at, size)
    take(batch, waiting, ids, scores, limit + not_in_line, 1, batch.no_unfinished_runs)
    looked_at = looked_at + n
  until batch.sent_apart == 0 or n < size or #batch.ids + batch.parked >= limit + not_in_line or batch.bytes >= LARGEST
    or looked_at >= limit + 1000
end
if limit > 0 then claim_due() end

local out_of_line = #batch.ids + batch.parked - not_in_line + batch.sent_apart
local since = batch.capped_since or -1
if is_limited then
  count_started(limits, #batch.ids, function()
    return redis.call('ZCOUNT', waiting, '-inf', due_now) > apart_before + out_of_line
  end)
end
if out_of_line > 0 then leave_first(out_of_line, apart_before) end
return with_rest(finish_claims(batch, since), since)
