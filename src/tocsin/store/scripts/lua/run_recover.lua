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
-- ARGV   epoch, clock, session, seq, owner, cursor, overdue, limit, items, believed, clock steps
--        owner: whose runs to walk, from the ZSCAN cursor '0' on; '' for what is `overdue` ms past its deadline;
--        items: msgpack [id] * n, to bring back only these of what is overdue; '' or left out for all;
--        believed: what the caller takes this server's time to be, '' or left out if it does not care; clock steps: how the
--        clock was set (lib/steps.lua)
-- RETURN {1, cursor, ids, head}: '0' when the walk is over; head as in run_finish; {1, '0', [], -1, now}: the caller is
--        wrong about the time by so much that no deadline is believed
-- USES   call, records, claims, moves, line, endings, widest, steps, settle
if answered then return answered end
limit = math.min(tonumber(limit), 1000)
-- A third of the time that the reaper gives runs past their deadline.
local WRONG_MS = 10000
local ids, found, raws = {}, {}, {}

local function walk()
  -- What is at work, not all entries in `claims`: there may be any number of paused, parked and dead jobs.
  local page = redis.call('ZSCAN', working, cursor, 'COUNT', limit)
  cursor = page[1]
  for at = 1, #page[2], 2 do
    local id = page[2][at]
    local raw = redis.call('HGET', claims, id)
    local claim = claim_if_readable(raw)
    if claim and claim.owner == owner and claim.token > 0 and not found[id] then
      ids[#ids + 1] = id
      found[id] = claim
      raws[id] = raw
    end
  end
end

local function past_deadline(before)
  if not items or items == '' then return redis.call('ZRANGEBYSCORE', working, '-inf', before, 'LIMIT', 0, limit) end
  local late = {}
  for _, id in ipairs(cmsgpack.unpack(items)) do
    local deadline = redis.call('ZSCORE', working, id)
    if deadline and tonumber(deadline) <= before then late[#late + 1] = id end
  end
  return late
end

local function overdue_ones()
  cursor = '0'
  local before = now - tonumber(overdue)
  local _, list = read_steps(clock_steps)
  for _, id in ipairs(past_deadline(before)) do
    local raw = redis.call('HGET', claims, id)
    local claim = claim_if_readable(raw)
    -- Tokens are the time of the claim in microseconds.
    local ahead = claim and list[1] and ahead_since(list, claim.token / 1000) or 0
    if ahead == 0 or tonumber(redis.call('ZSCORE', working, id)) + ahead <= before then
      ids[#ids + 1] = id
      found[id] = claim or fresh_claim(now)
      raws[id] = claim and raw
    end
  end
end

if owner == '' and (believed or '') ~= '' and math.abs(now - tonumber(believed)) > WRONG_MS then
  return {1, '0', ids, -1, now}
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
count_up('recovered', #ids)
return commit({1, cursor, ids, head_or_apart()}, 'recover', ids)
