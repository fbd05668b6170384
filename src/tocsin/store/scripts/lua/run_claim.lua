-- run_claim: give this worker the runs that are due, at most `limit` and about 4 MiB of them.
-- KEYS   meta      HASH    epoch, seq, fence, counters, limits
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, suspects, repeated, limit, cap, unread
--        lease: no claim after this server time; handlers: the u32 digests this worker knows, '' for any;
--        timeout: ms instead of the records' own, 0 for theirs; suspects: how many recovered runs at most;
--        repeated: '1' if the call was sent before and its answer did not come, '' otherwise;
--        cap: none while so many are working, whoever claimed them; '' or left out for the queue's own cap alone;
--        unread: digests of handlers whose records this worker could not read lately (lib/parked.lua); may be left out
-- RETURN {1, now, token, ids, records, stamps, next, parked, left}: ids in msgpack; stamps has for each its place u16,
--        due u48, attempt u32, recoveries u16, intent u8; next is when the first of those left is due, -1 for none;
--        parked is how many were set aside for workers that know them; left is how many more are due now; then {} and
--        since when, if the queue's limits kept some back until this claim; nothing from a paused queue;
--        {-3, now}: the lease is over
-- USES   call, records, claims, moves, line, widest, take, limits, parked, suspects
-- Whatever is below their millisecond (lib/line.lua).
local due_now = now_text .. '.9375'

-- When the first of those left is due, and how many are due now. Suspects are to be asked for again when what this worker
-- tries may have ended.
local function rest()
  local first, any_apart = first_waiting()
  local next_due, left = first and math.floor(tonumber(first)) or -1, 0
  if next_due >= 0 and next_due <= now then
    left = redis.call('ZCOUNT', waiting, any_apart and '(-2251799813685248' or '-inf', due_now)
  end
  if any_apart and (next_due < 0 or next_due > now + 100) then next_due = now + 100 end
  return next_due, left
end

-- Those that leave the line are its first: one range is quicker than as many names. `before`: how many stand apart.
local function leave_first(count, before)
  redis.call('ZREMRANGEBYRANK', waiting, before, before + count - 1)
  out[waiting], written = nil, true
end

limit = math.min(tonumber(limit), 1000)
-- A page of the line, from where the last one ended: nothing leaves the line before all pages were looked at.
local ids, scores, n, odd = {}, {}, 0, 1
local looked_at, more_due = 0, true
local function find_due()
  -- Some more than wanted where some may be sent apart.
  local size, from = limit, '-inf'
  if not all_fresh then size, from = limit + 50, '(-2251799813685248' end
  local found = redis.call('ZRANGEBYSCORE', waiting, from, due_now, 'WITHSCORES', 'LIMIT', looked_at, size)
  ids, scores, n = {}, {}, 0
  for at = 1, #found, 2 do
    n = n + 1
    ids[n], scores[n] = found[at], found[at + 1]
  end
  looked_at, more_due = looked_at + n, n == size
end

-- Nearly always there is nothing to be looked at but what is due, and that is plain. Then all else is not even made.
-- Whatever is parked, or stands apart, has an entry in `claims`.
local is_plain_queue = not (paused_now or max_active or every or capped_since) and all_fresh
if not answered and now <= tonumber(lease) and is_plain_queue then
  find_due()
  if n <= at_once then
    local records = n > 0 and redis.call('HMGET', jobs, unpack(ids))
    odd = take_plain(ids, scores, records, 0, 1, n)
  end
  if odd > n then
    if n > 0 then leave_first(n, 0) end
    local reply = finish_taking(-1)
    reply[7], reply[9] = rest()
    return reply
  end
end

local function with_rest(reply, since)
  local next_due, left = rest()
  if full or wait_until then next_due, left = wait_until or -1, 0 end
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

limit = allowed(limit)
local function count_apart() return redis.call('ZCOUNT', waiting, '-inf', '-2251799813685248') end

-- What stands aside enters the line first, and is written, so that it is found there in its turn.
local apart_before = 0
if not all_fresh then
  local most_suspects = math.min(suspects_left, limit)
  if limit > 0 and redis.call('ZCARD', parked) > 0 and enter_parked(most_suspects) then apply() end
  apart_before = count_apart()
  if apart_before > 0 and call_up(most_suspects) then
    apply()
    apart_before = count_apart()
  end
end
local not_in_line = #parkings
if limit > 0 and n == 0 then find_due() end
if n > 0 then take(waiting, ids, scores, limit + not_in_line, odd, all_fresh) end
-- Look behind those that were sent apart, but not without end: the server answers nobody else meanwhile.
while apart_count > 0 and more_due and #taken + #parkings < limit + not_in_line and bytes < LARGEST
  and looked_at < limit + 1000 do
  find_due()
  take(waiting, ids, scores, limit + not_in_line, 1, all_fresh)
end

local out_of_line = #taken + #parkings - not_in_line + apart_count
local since = capped_since or -1
if max_active or every or capped_since then
  count_started(#taken, function() return redis.call('ZCOUNT', waiting, '-inf', due_now) > apart_before + out_of_line end)
end
if out_of_line > 0 then leave_first(out_of_line, apart_before) end
return with_rest(finish_taking(since), since)
