-- job_unblock: tell blocked jobs how those ended that they wait for. Who has nothing left to wait for goes in line.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        blocked   ZSET    id -> not before ms
--        needs     HASH    id -> what it waits for
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, items, carried: items msgpack [id, life, queue NUL upstream, outcome] * n;
--        outcome 4: nobody knows the upstream; carried msgpack [entry] * n, of this partition's outbox, which are done with
-- RETURN {1, codes, head, carry}: a digit per item: 0 it does not wait for that (any more), 1 one less to wait for,
--        2 free, 3 cancelled; head: the first time at which one of them is due, or -1; carry: 1 if others wait for one
-- USES   call, records, claims, moves, line, endings, settle
if answered then return answered end
local UNKNOWN = 4
local WORDS = {[FAILED] = 'failed', [SUCCEEDED] = 'succeeded', [SKIPPED] = 'was skipped', [CANCELLED] = 'was cancelled',
  [UNKNOWN] = 'is not known any more: it was removed, or lost with the last writes of its server'}
local flat, entries = cmsgpack.unpack(items), cmsgpack.unpack(carried)
local codes, told, line, cancelled = {}, {}, -1, 0

-- What each waits for as this call leaves it, false for nothing.
local waits, changed = {}, {}
local function wait_of(id)
  if waits[id] == nil then
    local raw = redis.call('ZSCORE', blocked, id) and redis.call('HGET', needs, id)
    local fine, wait = pcall(cmsgpack.unpack, raw or '')
    waits[id] = raw and fine and type(wait) == 'table' and wait or false
  end
  return waits[id]
end

local function end_wait(id)
  leave(blocked, id)
  drop(needs, id)
  waits[id], changed[id] = false, nil
  told[#told + 1] = id
end

-- Not before its own time. A pause that was asked for meanwhile is obeyed now.
local function set_free(id)
  local due = math.max(now, tonumber(redis.call('ZSCORE', blocked, id)))
  local raw = redis.call('HGET', claims, id)
  local claim = claim_if_readable(raw)
  end_wait(id)
  if claim and has(claim.intent, PAUSE) then
    set(claims, id, write_claim(fresh_claim(due)))
    enter(paused, due, id)
    return
  end
  if raw then drop(claims, id) end
  enter_line(id, due)
  if line < 0 or due < line then line = due end
end

local function cancel(id, source, outcome)
  local record = redis.call('HGET', jobs, id)
  local queue, upstream = string.match(source, '^(%Z*)%z(.*)$')
  end_wait(id)
  local why = 'job ' .. upstream .. ' of queue ' .. queue .. ', which it waited for, ' .. WORDS[outcome]
  if readable(record) then
    cancel_job(id, record, cmsgpack.pack(why))
  else
    end_job(id, 0, CANCELLED)
  end
  cancelled = cancelled + 1
end

local function tell(id, life, source, outcome)
  local wait = wait_of(id)
  if not wait or wait[1] ~= life then return '0' end
  local place
  for at = 3, #wait do
    if wait[at] == source then place = at end
  end
  if not place then return '0' end
  if outcome ~= SUCCEEDED and wait[2] ~= 1 then
    cancel(id, source, outcome)
    return '3'
  end
  table.remove(wait, place)
  if #wait == 2 then
    set_free(id)
    return '2'
  end
  changed[id] = wait
  return '1'
end

for at = 1, #flat, 4 do codes[#codes + 1] = tell(flat[at], flat[at + 1], flat[at + 2], flat[at + 3]) end
for id, wait in pairs(changed) do
  set(needs, id, cmsgpack.pack(wait))
  told[#told + 1] = id
end
for _, entry in ipairs(entries) do leave(outbox, entry) end
local reply = {1, table.concat(codes), line, to_carry}
if #told == 0 and #entries == 0 then return unchanged(reply) end
apply()
if cancelled > 0 then count_up('cancelled', cancelled) end
return commit(reply, 'unblock', told)
