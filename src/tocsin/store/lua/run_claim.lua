-- run_claim: give this worker the runs that are due, at most `limit` and about 4 MiB of them.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        parked    ZSET    id -> since ms
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, lease, handlers, timeout, limit
--        lease: no claim after this server time; handlers: the u32 digests this worker knows, '' for any;
--        timeout: ms instead of the records' own, 0 for theirs
-- RETURN {1, now, token, ids, records, claims, next, parked, left}: next is when the first of those left is due, -1
--        for none; parked is how many were set aside for workers that know them; left is how many more are due now;
--        nothing from a paused queue; {-3, now}: the lease is over
-- USES   call, records, claims, moves, take
local function with_rest(reply)
  local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
  reply[7] = first[2] and tonumber(first[2]) or -1
  reply[9] = reply[7] < 0 and 0 or reply[7] > now and 0 or redis.call('ZCOUNT', waiting, '-inf', now)
  return reply
end

if answered then return with_rest(told(unpack(answered))) end
if now > tonumber(lease) then return {-3, now} end
if redis.call('HGET', meta, 'paused') then
  unchanged({now, 0, {}, 0})
  return {1, now, 0, {}, {}, {}, -1, 0, 0}
end

limit = math.min(tonumber(limit), 1000)
local found = redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
local ids, scores = {}, {}
for at = 1, #found, 2 do
  ids[#ids + 1] = found[at]
  scores[#scores + 1] = found[at + 1]
end
if #ids > 0 then take(waiting, ids, scores) end
if #taken < limit and redis.call('ZCARD', parked) > 0 then
  take_parked(redis.call('ZRANDMEMBER', parked, math.min(50, limit - #taken)))
end
return with_rest(finish_taking())
