-- job_put: add jobs, or change those that exist as their mode says.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, 0 if unreadable
--        dead      ZSET    id -> since ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        blocked   ZSET    id -> not before ms
--        needs     HASH    id -> what it waits for
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, items: msgpack [id, due, relative, mode, expected version, record] * n
--        mode 0 ignore, 1 replace, 2 postpone, 3 update (due kept if the trigger is), 4 edit (due 0: kept)
-- RETURN {1, codes, head}: a digit per item: 0 unchanged, 1 new, 2 changed, 3 remembered as done, 4 version
--        conflict, 5 nothing to edit; head is the earliest due put if it is the first in line or due now, else -1
-- USES   call, records, claims
if answered then return answered end
local IGNORE, REPLACE, POSTPONE, UPDATE, EDIT = 0, 1, 2, 3, 4
local flat = cmsgpack.unpack(items)

local ids = {}
for at = 1, #flat, 6 do ids[#ids + 1] = flat[at] end
local stored = redis.call('HMGET', jobs, unpack(ids))
local remembered = redis.call('ZCARD', done) > 0 and redis.call('ZMSCORE', done, unpack(ids)) or {}

local any_parked = redis.call('ZCARD', parked) > 0

local puts, lines, unclaims, sets, leaves, forgets, aside, postponed = {}, {}, {}, {}, {}, {}, {}, {}
local codes, earliest, widest, fresh = {}, nil, 0, 0

local function line_up(due, id)
  lines[#lines + 1] = due
  lines[#lines + 1] = id
  if not earliest or due < earliest then earliest = due end
end

local function measure(record)
  if #record > widest then widest = #record end
end

local function store(id, record)
  puts[#puts + 1] = id
  puts[#puts + 1] = record
  measure(record)
end

local function stage_of(id)
  for _, stage in ipairs({waiting, working, paused, parked, dead, blocked}) do
    if redis.call('ZSCORE', stage, id) then return stage end
  end
end

-- An existing job, not working: what an edit leaves alone keeps its place, a dead one too. Only a parked one is
-- tried again, because its record may have been the reason.
local function change(id, record, due, stage, keeps_due, mode)
  store(id, record)
  if keeps_due and (stage == waiting or stage == paused or stage == dead or stage == blocked) then return end
  if stage == blocked and mode == POSTPONE then
    postponed[#postponed + 1] = due
    postponed[#postponed + 1] = id
    local raw = redis.call('HGET', claims, id)
    if raw then
      local claim = read_claim(raw)
      claim.due = due
      sets[#sets + 1] = id
      sets[#sets + 1] = write_claim(claim)
    end
    return
  end
  if stage == paused then
    sets[#sets + 1] = id
    sets[#sets + 1] = write_claim(fresh_claim(due))
    aside[#aside + 1] = due
    aside[#aside + 1] = id
    return
  end
  if stage and stage ~= waiting then leaves[#leaves + 1] = {stage, id} end
  unclaims[#unclaims + 1] = id
  line_up(due, id)
end

-- While it is working nothing moves: the wish waits in the claim, with due 0 for one that leaves the run alone.
local function intend(id, claim, record, due, keeps_due)
  measure(record)
  claim.put_due = keeps_due and (has(claim.intent, PUT) and claim.put_due or 0) or math.max(due, 1)
  claim.put_record = record
  claim.intent = with(without(claim.intent, REMOVE), PUT)
  sets[#sets + 1] = id
  sets[#sets + 1] = write_claim(claim)
end

local function put_existing(id, due, mode, expected, record, old)
  local stage = stage_of(id)
  local raw = redis.call('HGET', claims, id)
  local claim = raw and read_claim(raw)
  local held = stage == working and claim
  if held and has(claim.intent, PUT) then old = claim.put_record end
  local removing = held and has(claim.intent, REMOVE)
  if expected > 0 and readable(old) and version_of(old) ~= expected then return '4' end
  if mode == EDIT and removing then return '5' end
  if mode == IGNORE and not removing then return '0' end
  local same = readable(old) and string.sub(old, 40) == string.sub(record, 40)
    and string.sub(old, 2, 13) == string.sub(record, 2, 13) and string.sub(old, 20, 27) == string.sub(record, 20, 27)
  if mode == UPDATE and same and not removing and stage then return '0' end
  local keeps_due = (mode == EDIT and due == 0)
    or (mode == UPDATE and readable(old) and trigger_of(old) == trigger_of(record) and not removing)
  if readable(old) then record = with_counts_of(record, old) end
  if held then intend(id, claim, record, due, keeps_due) else
    if keeps_due and claim then due = claim.due end
    if due == 0 then due = now end
    change(id, record, due, stage, keeps_due, mode)
  end
  return '2'
end

for i, id in ipairs(ids) do
  local at = (i - 1) * 6
  local due, mode, expected = flat[at + 2], flat[at + 4], flat[at + 5]
  if flat[at + 3] == 1 then due = now + due end
  local record = with_version(flat[at + 6], version)
  if stored[i] then
    codes[i] = put_existing(id, due, mode, expected, record, stored[i])
  elseif mode == EDIT then
    codes[i] = '5'
  elseif remembered[i] and tonumber(remembered[i]) > now and mode == IGNORE
    and is_kept(redis.call('HGET', results, id)) then
    codes[i] = '3'
  else
    if remembered[i] then forgets[#forgets + 1] = id end
    if any_parked and redis.call('ZSCORE', parked, id) then
      -- Somebody took its record away and it was parked without: it starts anew.
      leaves[#leaves + 1] = {parked, id}
      unclaims[#unclaims + 1] = id
    end
    store(id, record)
    line_up(due, id)
    fresh = fresh + 1
    codes[i] = '1'
  end
end

local reply = {1, table.concat(codes), -1}
if #puts == 0 and #sets == 0 then return unchanged(reply) end
if earliest then
  local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
  if earliest <= now or not first[2] or earliest < tonumber(first[2]) then reply[3] = earliest end
end

-- The addition comes first: a full server refuses it and nothing has changed.
if #puts > 0 then redis.call('HSET', jobs, unpack(puts)) end
if #sets > 0 then redis.call('HSET', claims, unpack(sets)) end
if #unclaims > 0 then redis.call('HDEL', claims, unpack(unclaims)) end
if #unclaims > 0 then redis.call('HDEL', errors, unpack(unclaims)) end
for _, leaving in ipairs(leaves) do
  redis.call('ZREM', leaving[1], leaving[2])
  -- Put again without, it waits for nobody.
  if leaving[1] == blocked then redis.call('HDEL', needs, leaving[2]) end
end
if #forgets > 0 then
  redis.call('ZREM', done, unpack(forgets))
  redis.call('HDEL', results, unpack(forgets))
end
if #lines > 0 then redis.call('ZADD', waiting, unpack(lines)) end
if #aside > 0 then redis.call('ZADD', paused, unpack(aside)) end
if #postponed > 0 then redis.call('ZADD', blocked, unpack(postponed)) end
if widest > tonumber(redis.call('HGET', meta, 'widest') or 0) then redis.call('HSET', meta, 'widest', widest) end
if fresh > 0 then redis.call('HINCRBY', meta, 'put', fresh) end
return commit(reply, 'put', ids)
