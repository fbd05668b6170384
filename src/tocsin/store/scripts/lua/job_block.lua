-- job_block: put jobs that wait for others, with entries in the outbox by which those are watched.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        dead      ZSET    id -> since ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        blocked   ZSET    id -> not before ms
--        needs     HASH    id -> what it waits for
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, items: msgpack [id, due, kind, mode, record, needs] * n; kind of due as in
--        job_put; mode 0 ignore, 1 replace, 2 postpone; needs: msgpack [life, 1 to run whatever comes of them, queue NUL upstream…]
-- RETURN {1, codes}: a digit per item: 0 unchanged, 1 new, 2 changed, 3 remembered as done, 6 it is working
-- USES   call, records, claims, moves, line, widest
if answered then return answered end
local IGNORE = 0
local flat = cmsgpack.unpack(items)
local codes, told, widest, fresh = {}, {}, 0, 0

local function set_aside(id, due, record, wait)
  set(jobs, id, record)
  if #record > widest then widest = #record end
  enter(blocked, due, id)
  set(needs, id, wait)
  local list = cmsgpack.unpack(wait)
  for at = 3, #list do enter(outbox, 0, 'W\0' .. id .. '\0' .. list[1] .. '\0' .. list[at]) end
  told[#told + 1] = id
end

-- What an earlier put of it left anywhere is replaced.
local function take_out(id)
  local spot = spot_of(id)
  if spot then
    leave_line(id, spot)
    drop(claims, id)
    drop(errors, id)
  end
  for _, stage in ipairs({paused, parked, dead, blocked}) do
    if redis.call('ZSCORE', stage, id) then
      leave(stage, id)
      drop(claims, id)
      drop(errors, id)
    end
  end
end

local function block(id, due, mode, record, wait)
  local old = redis.call('HGET', jobs, id)
  if old then
    local claim = claim_if_readable(redis.call('HGET', claims, id))
    local removing = claim and has(claim.intent, REMOVE)
    if mode == IGNORE and not removing then return '0' end
    -- Its claim has no room for what a job waits for.
    if redis.call('ZSCORE', working, id) then return '6' end
    if readable(old) and is_recurring(old) then
      local from = claim or spot_of(id)
      if from then
        skip(id, from.due, math.min(now + 1, due), WHY.EDITED)
        old = caught_up(old, from)
      end
    end
    take_out(id)
    set_aside(id, due, with_counts_of(record, old), wait)
    return '2'
  end
  local remembered = redis.call('ZSCORE', done, id)
  if remembered then
    local kept = tonumber(remembered) > now and is_kept(redis.call('HGET', results, id))
    if mode == IGNORE and kept then return '3' end
    leave(done, id)
    leave(unnamed, id)
    drop(results, id)
  end
  -- Somebody took its record away and it was parked without: it starts anew.
  take_out(id)
  set_aside(id, due, record, wait)
  fresh = fresh + 1
  return '1'
end

for at = 1, #flat, 6 do
  local due = flat[at + 1]
  if flat[at + 2] == 1 then due = now + due elseif flat[at + 2] == 2 then due = math.max(due, now) end
  codes[#codes + 1] = block(flat[at], due, flat[at + 3], with_version(flat[at + 4], version), flat[at + 5])
end
local reply = {1, table.concat(codes)}
if #told == 0 then return unchanged(reply) end
-- The addition comes first: a full server refuses it and nothing has changed.
apply({jobs})
remember_widest(widest, fresh)
if fresh > 0 then count_up('put', fresh) end
return commit(reply, 'block', told)
