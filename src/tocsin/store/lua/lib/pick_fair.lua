-- pick: whose turn it is in a queue of order `fair`, run by run. Bands strict or aged as in pick_priority.lua; within a
-- band the tenant with the smallest start tag is served and charged cost / weight. One at its cap, or ahead of its rate,
-- rests. All is worked out here before anything is written.
local fair = redis.call('HMGET', meta, 'aging', 'tenant_max_active', 'tenant_every', 'tenant_burst')
local aging, tenant_cap, tenant_every, tenant_burst =
  tonumber(fair[1]), tonumber(fair[2]), tonumber(fair[3]), tonumber(fair[4]) or 0
local any_weights = redis.call('HLEN', weights) > 0

-- The turns of a band as a heap by start tag, those of the same tag by name: {tag, tenant}. ZRANGE gives them in order,
-- and an ordered list is a heap.
local turns, changed_turns = {}, {}
local function turns_of(band, most)
  if not turns[band] then
    local found, list = redis.call('ZRANGE', TURNS[band], 0, most - 1, 'WITHSCORES'), {}
    for at = 1, #found, 2 do list[#list + 1] = {tonumber(found[at + 1]), found[at]} end
    turns[band] = list
  end
  return turns[band]
end

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

-- Where something was held back, by band and tenant: it is still in line, and so is the tenant's turn.
local holding = {}
local function leave_turns(band, tag, to_rest)
  local heap = turns[band]
  local tenant = heap[1][2]
  local state = state_of(tenant)
  state.tags[band], touched[tenant] = tag, state
  changed_turns[band .. tenant] = {band, tenant, not to_rest and holding[band .. tenant] and tag or nil}
  heap[1] = heap[#heap]
  heap[#heap] = nil
  if #heap > 1 then sift_down(heap) end
end

local function move_turn(band, tag)
  local heap = turns[band]
  heap[1] = {tag, heap[1][2]}
  changed_turns[band .. heap[1][2]] = {band, heap[1][2], tag}
  sift_down(heap)
end

-- A tenant's jobs in a band, a few at a time: most tenants are served once in a call.
local lines = {}
local function next_job(band, tenant)
  local line = lines[band .. tenant]
  if not line then
    line = {at = 1, page = jobs_of(tenant, band, nil, 2), size = 2}
    lines[band .. tenant] = line
  end
  if line.at > #line.page and #line.page == line.size then
    line.size = math.min(line.size * 4, 512)
    line.page = jobs_of(tenant, band, line.page[#line.page], line.size)
    line.at = 1
  end
  return line.page[line.at], line
end

local function first_band(most)
  local best, first
  for band = 0, 4 do
    local heap = turns_of(band, most)
    if heap[1] and not aging then return band end
    if heap[1] then
      local member = next_job(band, heap[1][2])
      local due = member and tonumber(string.sub(member, #heap[1][2] + 2, #heap[1][2] + 14)) or 0
      if not best or due + band * aging < best then best, first = due + band * aging, band end
    end
  end
  return first
end

local function rest(band, tenant, tag, till)
  leave_turns(band, tag, true)
  enter(resting, till, tenant)
end

local function weight_of(state, tenant)
  if not state.weight then
    local weight = any_weights and tonumber(redis.call('HGET', weights, tenant))
    state.weight = weight and weight > 0 and weight or 1
  end
  return state.weight
end

local function accept(band, tenant, id, due, place, record, raw)
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

-- Takes the first job of the tenant whose turn it is. It is charged for what it starts, not for what is set aside.
local function serve(band, tenant, tag, state)
  local member, line = next_job(band, tenant)
  if not member then return leave_turns(band, tag) end
  line.at = line.at + 1
  local from = #tenant + 2
  local due, place = tonumber(string.sub(member, from, from + 12)), tonumber(string.sub(member, from + 14, from + 17))
  local id = string.sub(member, from + 19)
  local record = redis.call('HGET', jobs, id)
  local raw = not all_fresh and redis.call('HGET', claims, id) or nil
  if raw and #raw < 24 then raw = nil end
  local suspect = raw and is_suspect(raw)
  if understood(record) and suspect and suspects_left < 1 then
    held_back = held_back + 1
    holding[band .. tenant] = true
    return
  end
  leave(READY[band], member)
  drop(spots, id)
  if not understood(record) then return park(id, due, place, record, raw) end
  if suspect then suspects_left = suspects_left - 1 end
  accept(band, tenant, id, due, place, record, raw)
  state.active, touched[tenant] = state.active + 1, state
  if tenant_every then state.rated = math.max(state.rated, now) + tenant_every end
  virtual_time(band)
  virtual[band], served[band] = tag, true
  local following = tag + math.max(cost_of(record), 1) / weight_of(state, tenant)
  if next_job(band, tenant) then move_turn(band, following) else leave_turns(band, following) end
end

local function pick(most)
  while #taken < most and bytes < LARGEST and #parkings < 1000 do
    local band = first_band(most)
    if not band then break end
    local tag, tenant = turns[band][1][1], turns[band][1][2]
    local state = state_of(tenant)
    if tenant_cap and state.active >= tenant_cap then
      rest(band, tenant, tag, '+inf')
    elseif tenant_every and state.rated > now + tenant_burst then
      rest(band, tenant, tag, string.format('%.0f', math.ceil(state.rated - tenant_burst)))
    else
      serve(band, tenant, tag, state)
    end
  end
  for band in pairs(served) do set(meta, 'v' .. band, number_text(virtual[band])) end
  for _, each in pairs(changed_turns) do
    if each[3] then enter(TURNS[each[1]], number_text(each[3]), each[2]) else leave(TURNS[each[1]], each[2]) end
  end
end
