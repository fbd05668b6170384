-- pick: whose turn it is in a queue of order `fair`, run by run. Bands strict or aged as in pick_priority.lua; within a
-- band the tenant with the smallest start tag is served and charged cost / weight. One at its cap, or ahead of its rate,
-- rests. All is worked out here before anything is written.
local fair = redis.call('HMGET', meta, 'aging', 'tenant_max_active', 'tenant_every', 'tenant_burst')
local aging, tenant_cap, tenant_every, tenant_burst =
  tonumber(fair[1]), tonumber(fair[2]), tonumber(fair[3]), tonumber(fair[4]) or 0
local any_weights = redis.call('HLEN', weights) > 0

local changed_turns = {}

local function goes_before(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end

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

local function sift_up(heap)
  local at, item = #heap, heap[#heap]
  while at > 1 do
    local parent = math.floor(at / 2)
    if not goes_before(item, heap[parent]) then break end
    heap[at] = heap[parent]
    at = parent
  end
  heap[at] = item
end

-- The turns of a band as a heap by start tag, those of the same tag by name: {tag, tenant}. They are read in order, some
-- at a time; `last` is the last one read, and who is not read yet comes after it.
local turns = {}
local function turns_of(band, most)
  local heap = turns[band]
  if not heap then
    heap = {read = 0}
    turns[band] = heap
  end
  while not heap.all and not (heap[1] and (heap[1] == heap.last or goes_before(heap[1], heap.last))) do
    local size = heap.read == 0 and most or 50
    local found = redis.call('ZRANGE', TURNS[band], heap.read, heap.read + size - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      heap.last = {tonumber(found[at + 1]), found[at]}
      heap[#heap + 1] = heap.last
      sift_up(heap)
    end
    heap.read, heap.all = heap.read + size, #found < size * 2
  end
  return heap
end

local function take_off(heap)
  heap[1] = heap[#heap]
  heap[#heap] = nil
  if #heap > 1 then sift_down(heap) end
end

-- How many tenants went, so that as many again are looked at who may be forgotten.
local gone = 0
local function leave_turns(band, tag)
  local tenant = turns[band][1][2]
  local state = state_of(tenant)
  state.tags[band], touched[tenant] = tag, state
  changed_turns[band .. tenant] = {band, tenant}
  gone = gone + 1
  take_off(turns[band])
end

local function move_turn(band, tag)
  local heap = turns[band]
  heap[1] = {tag, heap[1][2]}
  changed_turns[band .. heap[1][2]] = {band, heap[1][2], tag}
  sift_down(heap)
end

-- How many of a tenant's jobs may be held back before it is the turn of others.
local MOST_HELD = 50

-- A tenant's jobs in a band, a few at a time: most tenants are served once in a call.
local lines = {}
local function next_job(band, tenant)
  local line = lines[band .. tenant]
  if not line then
    line = {at = 1, page = jobs_of(tenant, band, nil, 2), size = 2, held = 0}
    lines[band .. tenant] = line
  end
  if line.at > #line.page and #line.page == line.size then
    line.size = math.min(line.size * 4, 512)
    line.page = jobs_of(tenant, band, line.page[#line.page], line.size)
    line.at = 1
  end
  return line.page[line.at], line
end

-- The parts of a member of `ready`; nil if it is none of ours.
local function read_member(member, tenant)
  local due, place, id = string.match(member, '^(%d+)%z(%d+)%z(.*)$', #tenant + 2)
  if due and #due == 13 and #place == 4 then return tonumber(due), tonumber(place), id end
end

local function first_band(most)
  local best, first
  for band = 0, 4 do
    local heap = turns_of(band, most)
    if heap[1] and not aging then return band end
    if heap[1] then
      local member = next_job(band, heap[1][2])
      local due = member and read_member(member, heap[1][2]) or 0
      if not best or due + band * aging < best then best, first = due + band * aging, band end
    end
  end
  return first
end

local function rest(band, tenant, tag, till)
  leave_turns(band, tag)
  enter(resting, till, tenant)
end

local function weight_of(state, tenant)
  if not state.weight then
    local weight = any_weights and tonumber(redis.call('HGET', weights, tenant))
    state.weight = weight and weight > 0 and weight or 1
  end
  return state.weight
end

-- Up to when a tenant has used its rate.
local function rated_of(state) return spent_by(tenant_every, tenant_burst, state.rated) end

local function accept(tenant, id, due, place, record, raw)
  local claim
  if raw then
    claim = before_due .. string.sub(raw, 9, 23)
  else
    claim = before_due .. struct.pack('>I2I6I4I2B', place, due, 1, 0, 0)
  end
  claim = claim .. by_owner .. string.char(#tenant) .. tenant
  enter(working, deadline_of(record), id)
  set(claims, id, claim)
  taken[#taken + 1], all_records[#all_records + 1], all_claims[#all_claims + 1] = id, record, claim
  bytes = bytes + #record
end

-- Bands whose virtual time has moved.
local served = {}

-- The virtual time is where the tenant that is served begins; and some of its way on, so that of those who come after
-- it each stands behind those who came before, and what is known of tenants who come once is over soon.
local function move_virtual_time(band, from, to)
  local before = virtual_time(band)
  virtual[band] = math.max(from, math.min(before + math.min(to - from, 1) / 64, to))
  served[band] = true
end

-- Takes the first job of the tenant whose turn it is. It is charged for what it starts, not for what is set aside.
local function serve(band, tenant, tag, state)
  local member, line = next_job(band, tenant)
  if line.held >= MOST_HELD or (not member and line.held > 0) then
    -- It keeps its turn, and is not asked again here.
    return take_off(turns[band])
  end
  if not member then return leave_turns(band, tag) end
  line.at = line.at + 1
  local due, place, id = read_member(member, tenant)
  if not id then return leave(READY[band], member) end
  local record = redis.call('HGET', jobs, id)
  local raw = not all_fresh and redis.call('HGET', claims, id) or nil
  if raw and #raw < 24 then raw = nil end
  local suspect = raw and is_suspect(raw)
  if understood(record) and suspect and suspects_left < 1 then
    held_back, line.held = held_back + 1, line.held + 1
    return
  end
  leave(READY[band], member)
  drop(spots, id)
  if not understood(record) then return park(id, due, place, record, raw) end
  if suspect then suspects_left = suspects_left - 1 end
  accept(tenant, id, due, place, record, raw)
  state.active, touched[tenant] = state.active + 1, state
  if tenant_every then state.rated = rated_of(state) + tenant_every end
  local following = tag + math.max(cost_of(record), 1) / weight_of(state, tenant)
  move_virtual_time(band, tag, following)
  if next_job(band, tenant) or line.held > 0 then move_turn(band, following) else leave_turns(band, following) end
end

-- Tenants of whom nothing need be known any more; a few more of them than went just now, so that they do not add up.
local function forget_tenants()
  if redis.call('HLEN', tenants) < 100 then return end
  local found = redis.call('HRANDFIELD', tenants, -2 * math.min(gone, 1000) - 2, 'WITHVALUES')
  for at = 1, #found, 2 do
    local tenant = found[at]
    local state = state_of(tenant, found[at + 1])
    if says_nothing(state) then touched[tenant] = state end
  end
end

local function pick(most)
  local looked_at = 0
  while #taken < most and bytes < LARGEST and #parkings < 1000 and looked_at < most + 1000 do
    looked_at = looked_at + 1
    local band = first_band(most)
    if not band then break end
    local tag, tenant = turns[band][1][1], turns[band][1][2]
    local state = state_of(tenant)
    if tenant_cap and state.active >= tenant_cap then
      rest(band, tenant, tag, '+inf')
    elseif tenant_every and rated_of(state) > now + tenant_burst then
      rest(band, tenant, tag, string.format('%.0f', math.ceil(rated_of(state) - tenant_burst)))
    else
      serve(band, tenant, tag, state)
    end
  end
  for band in pairs(served) do set(meta, 'v' .. band, number_text(virtual[band])) end
  for _, each in pairs(changed_turns) do
    if each[3] then enter(TURNS[each[1]], number_text(each[3]), each[2]) else leave(TURNS[each[1]], each[2]) end
  end
  forget_tenants()
end
