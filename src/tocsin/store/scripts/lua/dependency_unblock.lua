-- dependency_unblock: note how upstreams of blocked jobs ended. A job that waits for nothing any more goes in line.
-- KEYS   meta, sessions, jobs, waiting, claims, paused, errors, done, results, unnamed, blocked, needs, watchers,
--        outbox, events
-- ARGV   epoch, clock, session, seq, items, carried: items msgpack [id, life, queue NUL upstream, outcome] * n;
--        outcome 4: the upstream does not exist; carried msgpack [entry] * n, entries of this partition's outbox that
--        are done with
-- RETURN {1, codes, head, carry}: a digit per item: 0 it does not wait for that (any more), 1 one less to wait for,
--        2 free, 3 cancelled; head: the first time at which one of them is due, or -1; carry as in run_finish
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include counts
--@include order
--@include settle
local UNKNOWN = 4
local WORDS = {[FAILED] = 'failed', [SUCCEEDED] = 'succeeded', [SKIPPED] = 'was skipped', [CANCELLED] = 'was cancelled',
  [UNKNOWN] = 'is not known any more: it was removed, or lost with the last writes of its server'}
local flat, entries = cmsgpack.unpack(items), cmsgpack.unpack(carried)
local codes, changed_ids, line, cancelled = {}, {}, -1, 0

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
  changed_ids[#changed_ids + 1] = id
end

-- It is not due before its own time. If a pause was asked for meanwhile, it is paused now.
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
  if is_readable(record) then
    cancel_job(id, record, cmsgpack.pack(why))
  else
    end_job(id, 0, CANCELLED)
  end
  cancelled = cancelled + 1
end

local function note_end(id, life, source, outcome)
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

for at = 1, #flat, 4 do codes[#codes + 1] = note_end(flat[at], flat[at + 1], flat[at + 2], flat[at + 3]) end
for id, wait in pairs(changed) do
  set(needs, id, cmsgpack.pack(wait))
  changed_ids[#changed_ids + 1] = id
end
for _, entry in ipairs(entries) do leave(outbox, entry) end
local reply = {1, table.concat(codes), line, call.carry}
if #changed_ids == 0 and #entries == 0 then return unchanged(call, reply) end
write_all()
if cancelled > 0 then count_up('cancelled', cancelled) end
return commit(call, reply, 'unblock', changed_ids)
