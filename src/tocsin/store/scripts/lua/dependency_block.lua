-- dependency_block: put jobs that wait for others, with entries in the outbox that make them watchers of those.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed,
--        blocked, needs, outbox, events
-- ARGV   epoch, clock, session, seq, items: msgpack [id, due, kind, mode, record, needs] * n; kind of due as in
--        job_put; mode 0 ignore, 1 replace, 2 postpone; needs: msgpack [life, 1 to run whatever comes of them, queue
--        NUL upstream…]
-- RETURN {1, codes}: a digit per item: 0 unchanged, 1 new, 2 changed, 3 remembered as done, 6 it is working
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include counts
--@include order
--@include line_entry
--@include record_edit
--@include claim_intents
--@include events
--@include widest
--@include outcome_entry
--@include outbox
local IGNORE = 0
local flat = cmsgpack.unpack(items)
local codes, changed_ids, widest, fresh = {}, {}, 0, 0

local function set_aside(id, due, record, wait)
  set(jobs, id, record)
  if #record > widest then widest = #record end
  enter(blocked, due, id)
  set(needs, id, wait)
  local list = cmsgpack.unpack(wait)
  for at = 3, #list do enter(outbox, 0, wait_entry(id, list[1], list[at])) end
  changed_ids[#changed_ids + 1] = id
end

-- Remove what an earlier put of the job has left anywhere.
local function take_out(id)
  local entry = line_entry_of(id)
  if entry then
    leave_line(id, entry)
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
    -- A claim has no room for what a job waits for.
    if redis.call('ZSCORE', working, id) then return '6' end
    if is_readable(old) and is_recurring(old) then
      local from = claim or line_entry_of(id)
      if from then
        skip(id, from.due, math.min(now + 1, due), WHY.EDITED)
        old = with_uncounted(old, from)
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
  -- A job that lost its record and was parked without one starts anew.
  take_out(id)
  set_aside(id, due, record, wait)
  fresh = fresh + 1
  return '1'
end

for at = 1, #flat, 6 do
  local due = flat[at + 1]
  if flat[at + 2] == 1 then due = now + due elseif flat[at + 2] == 2 then due = math.max(due, now) end
  codes[#codes + 1] = block(flat[at], due, flat[at + 3], with_version(flat[at + 4], call.version), flat[at + 5])
end
local reply = {1, table.concat(codes)}
if #changed_ids == 0 then return unchanged(call, reply) end
-- The addition comes first: a full server refuses it and nothing has changed.
write_all({jobs})
remember_widest(widest, fresh)
if fresh > 0 then count_up('put', fresh) end
return commit(call, reply, 'block', changed_ids)
