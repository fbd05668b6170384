-- audit_mend: bring jobs that no transition leaves where they are back into the state machine. It reads the keys of a
--        job anew, whatever an audit has seen before; a job that is in order is left alone.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed,
--        blocked, needs, watchers, outbox, events
-- ARGV   epoch, clock, session, seq, items: msgpack [id] * n
-- RETURN {1, codes}: a digit per id: 0 left alone, 1 mended
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include line_entry
--@include presence
--@include settle
--@include requeue
--@include record_claim
--@include mend_each
local STAGES = {waiting, working, paused, parked, dead, blocked}
-- In place of a key, for jobs that are in `ready` of any band.
local IN_READY = {}

local function claim_of(id)
  local raw = redis.call('HGET', claims, id)
  if not raw then return nil end
  local claim, is_garbage = claim_if_readable(raw)
  -- No worker can hold a claim that is unreadable, so it counts as none.
  if is_garbage then drop(claims, id) end
  return claim, is_garbage
end

local function leave_stage(stage, id)
  if stage == IN_READY then leave_ready(id) else leave(stage, id) end
end

local function depart(stage, id)
  leave_stage(stage, id)
  if stage == blocked then drop(needs, id) end
end

-- Without a record there is nothing to run: drop what is left of the job, unless an edit in its claim has a record.
local function clear(id, places, claim, spoilt)
  if claim and has(claim.intent, PUT) then return spoilt end
  for _, stage in ipairs(places) do depart(stage, id) end
  -- The worker that holds it works in vain, and its slot is free.
  if claim and claim.token > 0 then freed(redis.call('HGET', claims, id)) end
  local failed = redis.call('HEXISTS', errors, id) == 1
  if claim then drop(claims, id) end
  if failed then drop(errors, id) end
  local is_watched = notify_watchers(id, CANCELLED)
  return #places > 0 or claim or failed or spoilt or is_watched
end

-- A run that no worker holds goes back in line, with what its claim says and what a person asked for meanwhile.
local function line_up(id, claim)
  claim = claim or fresh_claim(now)
  local verdict, record = apply_intent(id, claim, nil, 0, false)
  if verdict then return true end
  if record then set(jobs, id, record) end
  local times = unread_times(claim.intent)
  if times > 0 then
    set(claims, id, write_claim(release_claim(claim)))
    enter(parked, read_again_at(now, times), id)
  else
    requeue(id, claim, claim.due, record)
  end
  return true
end

-- It is in no stage. A worker may be executing it right now, and has until its timeout is over.
local function bring_back(id, claim)
  if not claim or claim.token == 0 then return line_up(id, claim) end
  local record = redis.call('HGET', jobs, id)
  enter(working, now + (is_readable(record) and timeout_of(record) or 60000), id)
  return true
end

-- The claim has a holder, but the job is not working: the holder must not end a run that others may start.
local function release(id, stage, claim)
  local ready = stage == IN_READY
  freed(redis.call('HGET', claims, id))
  local score = ready and claim.due or redis.call('ZSCORE', stage, id)
  if has(claim.intent, PAUSE) or has(claim.intent, REMOVE) or has(claim.intent, PUT) then
    leave_stage(stage, id)
    local verdict, record = apply_intent(id, claim, nil, 0, false)
    if verdict and stage == blocked then drop(needs, id) end
    if verdict then return true end
    if record then set(jobs, id, record) end
    if ready then enter_line(id, score, claim, record) else enter(stage, score, id) end
  end
  set(claims, id, write_claim(release_claim(claim)))
  return true
end

-- What it waited for is lost, so a person has to decide whether it runs.
local function ask_a_person(id)
  local due = tonumber(redis.call('ZSCORE', blocked, id))
  leave(blocked, id)
  set(claims, id, write_claim(fresh_claim(due)))
  enter(paused, due, id)
  return true
end

-- It is ready, but misplaced: it goes where its entry in `spots`, or the better of two bands, says.
local function place_again(id, claim)
  local entry = ready_entry_of(id)
  leave_ready(id)
  enter_line(id, entry.due, claim or fresh_claim(entry.due, entry.place))
  return true
end

-- A ready job that is also in another stage must not be started: it leaves `ready` and stays in the other one.
local function places_of(id)
  local places = {}
  for _, stage in ipairs(STAGES) do
    if redis.call('ZSCORE', stage, id) then places[#places + 1] = stage end
  end
  local ready = is_ready(id)
  local doubled = ready and #places > 0
  if doubled then leave_ready(id) elseif ready then places[1] = IN_READY end
  return places, doubled
end

local function set_right(id)
  local places, doubled = places_of(id)
  local remembered = redis.call('ZSCORE', done, id)
  local claim, spoilt = claim_of(id)
  spoilt = spoilt or doubled
  local held = claim and claim.token > 0
  if not remembered and redis.call('HEXISTS', results, id) == 1 then
    drop(results, id)
    spoilt = true
  end
  if not remembered and redis.call('ZSCORE', unnamed, id) then
    leave(unnamed, id)
    spoilt = true
  end
  local waits = redis.call('HEXISTS', needs, id) == 1
  if waits and not redis.call('ZSCORE', blocked, id) then
    drop(needs, id)
    spoilt = true
  end
  if redis.call('HEXISTS', jobs, id) == 0 then return clear(id, places, claim, spoilt) end
  if #places == 0 then
    if remembered then return spoilt end
    return bring_back(id, claim)
  end
  if #places == 1 and places[1] == working and not held then
    leave_working(id, claim and redis.call('HGET', claims, id))
    return line_up(id, claim)
  end
  if #places == 1 and places[1] == blocked and not waits and not held then return ask_a_person(id) end
  if #places == 1 and places[1] ~= working and held then return release(id, places[1], claim) end
  if places[1] == IN_READY and is_misplaced(id) then return place_again(id, claim) end
  if #places > 1 and held and redis.call('ZSCORE', working, id) then
    for _, stage in ipairs(places) do
      if stage ~= working then depart(stage, id) end
    end
    return true
  end
  return spoilt
end

local codes, mended = mend_each(cmsgpack.unpack(items), set_right)
local reply = {1, codes}
if #mended == 0 then return unchanged(call, reply) end
write_all()
return commit(call, reply, 'mend', mended)
