-- audit_mend: bring jobs that stand where no transition leaves them back into the state machine. What a job's keys
--        say is read here, whatever an audit has seen before; a job that is in order is left alone.
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
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, items: msgpack [id] * n
-- RETURN {1, codes}: a digit per id: 0 left alone, 1 mended
-- USES   call, records, claims, moves, line, standing, endings, widest, settle, mends
if answered then return answered end
local STAGES = {waiting, working, paused, parked, dead, blocked}
-- Stands for the place of those that are ready, in queues that have such.
local IN_READY = {}

local function claim_of(id)
  local raw = redis.call('HGET', claims, id)
  if not raw then return nil end
  local fine, claim = pcall(read_claim, raw)
  -- Nobody can hold what nobody can read: as good as none, and every script that meets it would stop.
  if not fine then drop(claims, id) end
  return fine and claim or nil, not fine
end

local function leave_stage(stage, id)
  if stage == IN_READY then leave_ready(id) else leave(stage, id) end
end

local function depart(stage, id)
  leave_stage(stage, id)
  if stage == blocked then drop(needs, id) end
end

-- Without a record there is nothing to run: what is left of it goes, unless an edit that waits in its claim has one.
local function clear(id, places, claim, spoilt)
  if claim and has(claim.intent, PUT) then return spoilt end
  for _, stage in ipairs(places) do depart(stage, id) end
  -- Whoever held it works for nobody: its slot is free.
  if claim and claim.token > 0 then freed(redis.call('HGET', claims, id)) end
  local failed = redis.call('HEXISTS', errors, id) == 1
  if claim then drop(claims, id) end
  if failed then drop(errors, id) end
  local told = tell_watchers(id, CANCELLED)
  return #places > 0 or claim or failed or spoilt or told
end

-- A run that nobody holds: back in line, with what its claim remembers, and what a person wished meanwhile.
local function line_up(id, claim)
  claim = claim or fresh_claim(now)
  local verdict, record = obeyed(id, claim, nil, 0, false)
  if verdict then return true end
  if record then set(jobs, id, record) end
  local times = unread_times(claim.intent)
  if times > 0 then
    set(claims, id, write_claim(let_go(claim)))
    enter(parked, read_again_at(times), id)
  else
    go_back(id, claim, claim.due, record)
  end
  return true
end

-- In no stage. Somebody may be executing it right now, and is believed until its timeout is over.
local function bring_back(id, claim)
  if not claim or claim.token == 0 then return line_up(id, claim) end
  local record = redis.call('HGET', jobs, id)
  enter(working, now + (readable(record) and timeout_of(record) or 60000), id)
  return true
end

-- A token in a claim that is not being worked on: its holder must not end a run that others may start.
local function release(id, stage, claim)
  local ready = stage == IN_READY
  freed(redis.call('HGET', claims, id))
  local score = ready and claim.due or redis.call('ZSCORE', stage, id)
  if has(claim.intent, PAUSE) or has(claim.intent, REMOVE) or has(claim.intent, PUT) then
    leave_stage(stage, id)
    local verdict, record = obeyed(id, claim, nil, 0, false)
    if verdict and stage == blocked then drop(needs, id) end
    if verdict then return true end
    if record then set(jobs, id, record) end
    if ready then enter_line(id, score, claim, record) else enter(stage, score, id) end
  end
  set(claims, id, write_claim(let_go(claim)))
  return true
end

-- Nobody knows what it waited for: a person is to say whether it may run.
local function ask_a_person(id)
  local due = tonumber(redis.call('ZSCORE', blocked, id))
  leave(blocked, id)
  set(claims, id, write_claim(fresh_claim(due)))
  enter(paused, due, id)
  return true
end

-- In line, with a spot that is not its place, or in two bands: the place that its spot, or the better band, says.
local function place_again(id, claim)
  local spot = ready_spot(id)
  leave_ready(id)
  enter_line(id, spot.due, claim or fresh_claim(spot.due, spot.place))
  return true
end

-- One that stands aside or waits as well is not to be started: it leaves `ready` and stays where else it is.
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
    stop(id, claim and redis.call('HGET', claims, id))
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

return mend_each(cmsgpack.unpack(items), set_right)
