-- pick: whose turn it is in a queue of order `fair`, run by run. Bands strict or aged as in pick_priority.lua; within a
-- band the tenant with the smallest start tag is served and charged cost / weight. One at its cap, or ahead of its rate,
-- rests. All is worked out here before anything is written.
local fair = redis.call('HMGET', meta, 'aging', 'tenant_max_active', 'tenant_every', 'tenant_burst')
local aging, tenant_cap, tenant_every, tenant_burst =
  tonumber(fair[1]), tonumber(fair[2]), tonumber(fair[3]), tonumber(fair[4]) or 0
local is_limited = tenant_cap or tenant_every
local any_weights = redis.call('HLEN', weights) > 0

-- The turns of a band as a heap by start tag, those of the same tag by name. ZRANGE gives them in order, and an ordered
-- list is a heap. No more can be served than there are to be started.
local turns, moved = {}, {}
local function turns_of(band, most)
  if not turns[band] then
    local found, heap, names = redis.call('ZRANGE', TURNS[band], 0, most - 1, 'WITHSCORES'), {}, {}
    for at = 1, #found, 2 do
      local n = (at + 1) / 2
      names[n] = found[at]
      heap[n] = {band = band, tenant = found[at], tag = tonumber(found[at + 1])}
    end
    -- Without caps and rates they are asked for only when somebody leaves the turns.
    if is_limited then load_states(names) end
    turns[band] = heap
  end
  return turns[band]
end

local function goes_before(a, b) return a.tag < b.tag or (a.tag == b.tag and a.tenant < b.tenant) end

local function sift_down(heap)
  local at, size, item = 1, #heap, heap[1]
  while true do
    local child = at * 2
    if child > size then break end
    if child < size and goes_before(heap[child + 1], heap[child]) then child = child + 1 end
    if not goes_before(heap[child], item) then break end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = item
end

local function note(turn)
  if not turn.noted then
    turn.noted = true
    moved[#moved + 1] = turn
  end
end

local function leave_turns(turn)
  if not states[turn.tenant] then load_states({turn.tenant}) end
  local heap, state = turns[turn.band], states[turn.tenant]
  state.tags[turn.band], touched[turn.tenant] = turn.tag, state
  turn.left = true
  note(turn)
  local last = #heap
  heap[1], heap[last] = heap[last], nil
  if last > 2 then sift_down(heap) end
end

-- The first of a tenant's jobs that was not looked at yet. A few are read at a time: most are served once in a call.
local function next_job(turn)
  if not turn.page then
    turn.at, turn.size = 1, 2
    turn.page = jobs_of(turn.tenant, turn.band, nil, 2)
  elseif turn.at > #turn.page and #turn.page == turn.size then
    turn.size = math.min(turn.size * 4, 512)
    turn.page = jobs_of(turn.tenant, turn.band, turn.page[#turn.page], turn.size)
    turn.at, turn.records = 1, nil
  end
  return turn.page[turn.at]
end

-- The record of the job before `turn.at`. Whoever is served more than twice has more than one read at once.
local function record_at(turn, id, from)
  if turn.size == 2 then return redis.call('HGET', jobs, id) end
  local at = turn.at - 1
  if not turn.records or at > turn.records_to then
    turn.records_from, turn.records_to = at, math.min(at + math.min(at_once(), 16) - 1, #turn.page)
    local ids = {}
    for i = at, turn.records_to do ids[#ids + 1] = string.sub(turn.page[i], from + 19) end
    turn.records = redis.call('HMGET', jobs, unpack(ids))
  end
  return turn.records[at - turn.records_from + 1]
end

local function first_turn(most)
  local best, first
  for band = 0, 4 do
    local turn = turns_of(band, most)[1]
    if turn and not aging then return turn end
    if turn then
      local member = next_job(turn)
      local due = member and tonumber(string.sub(member, #turn.tenant + 2, #turn.tenant + 14)) or 0
      if not best or due + band * aging < best then best, first = due + band * aging, turn end
    end
  end
  return first
end

local function rest(turn, till)
  leave_turns(turn)
  enter(resting, till, turn.tenant)
end

local function weight_of(turn)
  if not any_weights then return 1 end
  if not turn.weight then
    local weight = tonumber(redis.call('HGET', weights, turn.tenant))
    turn.weight = weight and weight > 0 and weight or 1
  end
  return turn.weight
end

local function accept(tenant, id, due, place, record, raw)
  local claim
  if raw then
    claim = before_due .. string.sub(raw, 9, 23)
  else
    claim = before_due .. struct.pack('>I2I6I4I2B', place, due, 1, 0, 0)
  end
  claim = claim .. by_owner .. (tenant_cap and string.char(#tenant + 1) .. '=' .. tenant or string.char(0))
  enter(working, deadline_of(record), id)
  set(claims, id, claim)
  local n = #taken + 1
  taken[n], all_records[n], all_claims[n] = id, record, claim
  bytes = bytes + #record
end

-- Bands whose virtual time has moved.
local served = {}

local function charge(turn, record)
  if is_limited then
    local state = states[turn.tenant]
    touched[turn.tenant] = state
    if tenant_cap then state.active = state.active + 1 end
    if tenant_every then state.rated = math.max(state.rated, now) + tenant_every end
  end
  virtual_time(turn.band)
  virtual[turn.band], served[turn.band] = turn.tag, true
  turn.tag = turn.tag + math.max(cost_of(record), 1) / weight_of(turn)
end

-- Takes the first job of the tenant whose turn it is. It is charged for what it starts, not for what is set aside.
local function serve(turn)
  local tenant, member = turn.tenant, next_job(turn)
  if not member then return leave_turns(turn) end
  turn.at = turn.at + 1
  local from = #tenant + 2
  local id = string.sub(member, from + 19)
  local record = record_at(turn, id, from)
  local raw = not all_fresh and redis.call('HGET', claims, id) or nil
  if raw and #raw < 25 then raw = nil end
  local fits, suspect = understood(record), raw and is_suspect(raw)
  if fits and suspect and suspects_left < 1 then
    held_back = held_back + 1
    return
  end
  leave(READY[turn.band], member)
  drop(spots, id)
  local due, place = tonumber(string.sub(member, from, from + 12)), tonumber(string.sub(member, from + 14, from + 17))
  if not fits then return park(id, due, place, record, raw) end
  if suspect then suspects_left = suspects_left - 1 end
  accept(tenant, id, due, place, record, raw)
  charge(turn, record)
  if not next_job(turn) then return leave_turns(turn) end
  note(turn)
  sift_down(turns[turn.band])
end

local function pick(most)
  while #taken < most and bytes < LARGEST and #parkings < 1000 do
    local turn = first_turn(most)
    if not turn then break end
    local state = is_limited and states[turn.tenant]
    if tenant_cap and state.active >= tenant_cap then
      rest(turn, '+inf')
    elseif tenant_every and state.rated > now + tenant_burst then
      rest(turn, string.format('%.0f', math.ceil(state.rated - tenant_burst)))
    else
      serve(turn)
    end
  end
  for band in pairs(served) do set(meta, 'v' .. band, number_text(virtual[band])) end
  for _, turn in ipairs(moved) do
    if turn.left then
      leave(TURNS[turn.band], turn.tenant)
    else
      enter(TURNS[turn.band], number_text(turn.tag), turn.tenant)
    end
  end
end
