-- run_recover: bring back runs whose worker is dead, or whose deadline has passed, at their due time.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, errors, done, results, unnamed, watchers, outbox,
--        events
-- ARGV   epoch, clock, session, seq, owner, cursor, overdue, limit, items, believed, clock steps
--        owner: whose runs to walk, from the ZSCAN cursor '0' on; '' for what is `overdue` ms past its deadline;
--        items: msgpack [id] * n, to bring back only these of what is overdue; '' or left out for all;
--        believed: what the caller takes this server's time to be, '' or left out if it does not care; clock steps: how
--        the clock was set (lib/clock_steps.lua)
-- RETURN {1, cursor, ids, head}: '0' when the walk is over; head as in run_finish; {1, '0', [], -1, now}: the caller is
--        wrong about the time by so much that no deadline is believed
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include counts
--@include order
--@include settle
--@include requeue

--@include clock_steps
limit = math.min(tonumber(limit), 1000)
-- A third of the time that the reaper gives runs past their deadline.
local WRONG_MS = 10000
local ids, found, raws = {}, {}, {}

local function walk_claims_of_owner()
  -- A page of what is at work, not of all entries in `claims`: there may be any number of paused, parked and dead jobs.
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

local function find_overdue()
  cursor = '0'
  local before = now - tonumber(overdue)
  local _, steps = read_steps(clock_steps)
  for _, id in ipairs(past_deadline(before)) do
    local raw = redis.call('HGET', claims, id)
    local claim = claim_if_readable(raw)
    -- Tokens are the time of the claim in microseconds.
    local ahead = claim and steps[1] and ahead_since(steps, claim.token / 1000) or 0
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

if owner == '' then find_overdue() else walk_claims_of_owner() end
if #ids == 0 then
  local reply = {1, cursor, ids, -1}
  -- Workers look for deadlines again and again, idle ones too, so that writes nothing; a late copy of such a call does
  -- no harm, whatever it finds. A late copy of a walk for a dead worker must not come when the name is in use again.
  return owner == '' and reply or unchanged(call, reply)
end

for _, id in ipairs(ids) do
  local claim = found[id]
  leave_working(id, raws[id])
  claim.recoveries = math.min(claim.recoveries + 1, 65535)
  local verdict, put = apply_intent(id, claim, nil, 0, false)
  if not verdict then
    if put then set(jobs, id, put) end
    requeue(id, claim, claim.due, put)
  end
end
write_all()
count_up('recovered', #ids)
return commit(call, {1, cursor, ids, head_or_apart()}, 'recover', ids)
