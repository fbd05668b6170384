-- order: as order_due.lua, in priority bands, and within a band each tenant in its turn, by weight. A tenant is charged
-- when it is served, so that removals, new priorities and new weights count at once.
-- KEYS   waiting, jobs, ready0, ready1, ready2, ready3, ready4, turns0, turns1, turns2, turns3, turns4, tenants, spots,
--        resting
-- `turns` has tenant -> start tag, for tenants that have work in the band and do not rest; `resting` has tenant ->
-- until ms, infinity for tenants at their cap.
--@include ordered
--@include tenant

-- What this call knows of tenants, and has changed.
--   states, virtual   of tenants and of bands, as read or as changed since
--   touched           tenant -> state that is to be written
--   freed             tenant -> how many slots it has more than before
--   joining           by band: tenants with new work, which need a turn if they have none
--   awake             tenants whose rest this call has ended
local function fair_state()
  local fair = call.fair
  if not fair then
    fair = {states = {}, touched = {}, freed = {}, awake = {}, joining = {[0] = {}, {}, {}, {}, {}}}
    call.fair = fair
  end
  return fair
end

local function number_text(value) return string.format('%.17g', value) end

local function virtual_time(band)
  local fair = fair_state()
  if not fair.virtual then
    fair.virtual = {}
    for i, v in ipairs(redis.call('HMGET', meta, 'v0', 'v1', 'v2', 'v3', 'v4')) do
      local value = tonumber(v)
      -- 0 for what is no number, or beyond any sum of costs.
      fair.virtual[i - 1] = value and value > -1e300 and value < 1e300 and value or 0
    end
  end
  return fair.virtual[band]
end

local function load_states(names)
  local states = fair_state().states
  for first = 1, #names, 4000 do
    local upto = math.min(first + 3999, #names)
    local raws = redis.call('HMGET', tenants, unpack(names, first, upto))
    for i = first, upto do states[names[i]] = states[names[i]] or read_state(raws[i - first + 1]) end
  end
end

-- Whether the state says no more than that of an unknown tenant does.
local function is_default_state(state)
  if state.active > 0 or state.rated > now then return false end
  for band = 0, 4 do
    if state.tags[band] > virtual_time(band) then return false end
  end
  return true
end

local function save_state(tenant, state)
  if is_default_state(state) then return drop(tenants, tenant) end
  set(tenants, tenant, pack_state(state))
end

local function rests_until(tenant)
  local fair = fair_state()
  if fair.any_resting == nil then fair.any_resting = redis.call('ZCARD', resting) > 0 end
  return fair.any_resting and redis.call('ZSCORE', resting, tenant)
end

local function join(band, tenant) fair_state().joining[band][tenant] = true end

function enter_ready(id, due, place, record)
  local band, tenant = band_and_tenant(id, record)
  local prefix = ready_prefix(tenant, due, place or next_place())
  enter(READY[band], 0, prefix .. '\0' .. id)
  set(spots, id, band .. prefix)
  join(band, tenant)
end

-- A tenant that rested may have its turns again, wherever it has work.
local function let_join(tenant)
  leave(resting, tenant)
  fair_state().awake[tenant] = true
  for band = 0, 4 do
    if #members_of_tenant(READY[band], tenant, nil, 1) > 0 then join(band, tenant) end
  end
end

local function freed(raw)
  local tenant = tenant_of_claim(raw)
  -- Runs count only where tenants have a cap: those that started before it was set do not.
  if not tenant then return end
  local slots = fair_state().freed
  slots[tenant] = (slots[tenant] or 0) + 1
end

local function names_of(set_of)
  local names = {}
  for name in pairs(set_of) do names[#names + 1] = name end
  return names
end

local function give_slots_back(fair)
  load_states(names_of(fair.freed))
  for tenant, slots in pairs(fair.freed) do
    local state = fair.states[tenant]
    state.active, fair.touched[tenant] = math.max(state.active - slots, 0), state
    if rests_until(tenant) == 'inf' then let_join(tenant) end
  end
end

local function give_turns(fair, band)
  local names = names_of(fair.joining[band])
  local missing = {}
  for first = 1, #names, 4000 do
    local upto = math.min(first + 3999, #names)
    for i, tag in ipairs(redis.call('ZMSCORE', TURNS[band], unpack(names, first, upto))) do
      local tenant = names[first + i - 1]
      if not tag and (fair.awake[tenant] or not rests_until(tenant)) then missing[#missing + 1] = tenant end
    end
  end
  load_states(missing)
  for _, tenant in ipairs(missing) do
    enter(TURNS[band], number_text(math.max(virtual_time(band), fair.states[tenant].tags[band])), tenant)
  end
end

-- The work of tenants that rest is in line, but no turn serves it until they are rested.
local function head()
  for band = 0, 4 do
    if redis.call('ZCARD', TURNS[band]) > 0 then return paced(now) end
  end
  local line = waiting_head()
  local rested = redis.call('ZRANGE', resting, 0, 0, 'WITHSCORES')[2]
  if not rested or rested == 'inf' then return paced(line) end
  return paced(line < 0 and tonumber(rested) or math.min(line, tonumber(rested)))
end

local function write_all(first)
  local fair = fair_state()
  if next(fair.freed) then give_slots_back(fair) end
  for band = 0, 4 do
    if next(fair.joining[band]) then give_turns(fair, band) end
  end
  for tenant, state in pairs(fair.touched) do save_state(tenant, state) end
  remember_places()
  apply(first)
  fair.touched, fair.freed, fair.awake, fair.joining = {}, {}, {}, {[0] = {}, {}, {}, {}, {}}
  fair.any_resting = nil
end
