-- run_recover: bring back runs whose worker is dead, or whose deadline has passed, at their due time.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, cursor, overdue, limit, items
--        owner: whose claims to walk, from the HSCAN cursor '0' on; '' for what is `overdue` ms past its deadline;
--        items: msgpack [id] * n, to bring back only these of what is overdue; left out for all
-- RETURN {1, cursor, ids, head}: '0' when the walk is over; head as in run_finish
-- USES   call, records, claims, moves, line, endings, settle
if answered then return answered end
limit = math.min(tonumber(limit), 1000)
local ids, found, raws = {}, {}, {}

local function walk()
  local page = redis.call('HSCAN', claims, cursor, 'COUNT', limit)
  cursor = page[1]
  for at = 1, #page[2], 2 do
    local claim = claim_if_readable(page[2][at + 1])
    if claim and claim.owner == owner and claim.token > 0 and not found[page[2][at]] then
      ids[#ids + 1] = page[2][at]
      found[page[2][at]] = claim
      raws[page[2][at]] = page[2][at + 1]
    end
  end
end

local function past_deadline(before)
  if not items then return redis.call('ZRANGEBYSCORE', working, '-inf', before, 'LIMIT', 0, limit) end
  local late = {}
  for _, id in ipairs(cmsgpack.unpack(items)) do
    local deadline = redis.call('ZSCORE', working, id)
    if deadline and tonumber(deadline) <= before then late[#late + 1] = id end
  end
  return late
end

local function overdue_ones()
  cursor = '0'
  for _, id in ipairs(past_deadline(now - tonumber(overdue))) do
    local raw = redis.call('HGET', claims, id)
    local claim = claim_if_readable(raw)
    ids[#ids + 1] = id
    found[id] = claim or fresh_claim(now)
    raws[id] = claim and raw
  end
end

if owner == '' then overdue_ones() else walk() end
if #ids == 0 then
  local reply = {1, cursor, ids, -1}
  -- Deadlines are looked at again and again, by idle workers too, so that writes nothing; a late copy of the call does no
  -- harm, whatever it finds. One that walks for a dead worker must not come when the name is in use again.
  return owner == '' and reply or unchanged(reply)
end

for _, id in ipairs(ids) do
  local claim = found[id]
  stop(id, raws[id])
  claim.recoveries = math.min(claim.recoveries + 1, 65535)
  local verdict, put = obeyed(id, claim, nil, 0, false)
  if not verdict then
    if put then set(jobs, id, put) end
    go_back(id, claim, claim.due, put)
  end
end
apply()
redis.call('HINCRBY', meta, 'recovered', #ids)
return commit({1, cursor, ids, head()}, 'recover', ids)
