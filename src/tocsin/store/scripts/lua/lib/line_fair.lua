-- line_fair: as line.lua, in bands, and within a band each tenant in its turn, by weight. A tenant is charged when it is
-- served, so that removals, new priorities and new weights are right at once.
-- `ready` has tenant \0 due (13 digits) \0 place (4 digits) \0 id, all with score 0: a tenant's jobs stand together, in
-- their order. `spots` has id -> band and all of that but the id. `turns` has tenant -> start tag, for those who have
-- work in the band and do not rest; `resting` has tenant -> until ms, infinity for those at their cap. `tenants` has
-- tenant -> runs u32, rate's time double, finish tag double * 5; one that says nothing is left out.
local TURNS = {[0] = turns0, turns1, turns2, turns3, turns4}
local KNOWN = '>I4dddddd'

local function number_text(value) return string.format('%.17g', value) end

-- What is no number, or further than any sum of costs, is none of ours.
local function sane(value) return value and value > -1e300 and value < 1e300 and value or 0 end

local virtual
local function virtual_time(band)
  if not virtual then
    virtual = {}
    for i, v in ipairs(redis.call('HMGET', meta, 'v0', 'v1', 'v2', 'v3', 'v4')) do virtual[i - 1] = sane(tonumber(v)) end
  end
  return virtual[band]
end

local function read_state(raw)
  local state = {active = 0, rated = 0, tags = {[0] = 0, 0, 0, 0, 0}}
  if raw and #raw == 52 then
    local tags = state.tags
    state.active, state.rated, tags[0], tags[1], tags[2], tags[3], tags[4] = struct.unpack(KNOWN, raw)
    -- What is no number, or further than any sum of costs, is none of ours.
    if not (state.rated < 1e300) then state.rated = 0 end
    for band = 0, 4 do
      if not (tags[band] < 1e300) then tags[band] = 0 end
    end
  end
  return state
end

local states = {}
local function load_states(names)
  for first = 1, #names, 4000 do
    local upto = math.min(first + 3999, #names)
    local raws = redis.call('HMGET', tenants, unpack(names, first, upto))
    for i = first, upto do states[names[i]] = states[names[i]] or read_state(raws[i - first + 1]) end
  end
end

-- Nothing that holds no longer: what is not known of a tenant means the same.
local function says_nothing(state)
  if state.active > 0 or state.rated > now then return false end
  for band = 0, 4 do
    if state.tags[band] > virtual_time(band) then return false end
  end
  return true
end

local function save_state(tenant, state)
  if says_nothing(state) then return drop(tenants, tenant) end
  local tags = state.tags
  set(tenants, tenant, struct.pack(KNOWN, state.active, state.rated, tags[0], tags[1], tags[2], tags[3], tags[4]))
end

local any_resting
local function rests_until(tenant)
  if any_resting == nil then any_resting = redis.call('ZCARD', resting) > 0 end
  return any_resting and redis.call('ZSCORE', resting, tenant)
end

local function jobs_of(tenant, band, after, most)
  return redis.call('ZRANGEBYLEX', READY[band], after and '(' .. after or '[' .. tenant .. '\0', '(' .. tenant .. '\1',
    'LIMIT', 0, most)
end

local function ready_spot(id)
  local at = redis.call('HGET', spots, id)
  if at then
    local band, tenant, due, place = string.match(at, '^([0-4])(.*)%z(%d+)%z(%d+)$')
    -- What nobody of ours wrote is a spot as well, of nothing.
    if not band then band, tenant, due, place = 2, '', now, 0 end
    return {band = tonumber(band), due = tonumber(due), score = string.format('%.0f', tonumber(due)),
      place = tonumber(place), member = string.sub(at, 2) .. '\0' .. id, tenant = tenant}
  end
end

-- A tenant that has no more work in the band stays in the turns until its turn comes and nothing is found.
local function leave_line(id, spot)
  if not spot.band then return leave(waiting, id) end
  leave(READY[spot.band], spot.member)
  drop(spots, id)
end

local function leave_ready(id) leave_line(id, ready_spot(id)) end

-- Tenants with new work, by band: to be given a turn if they have none.
local joining = {[0] = {}, {}, {}, {}, {}}
local function join(band, tenant) joining[band][tenant] = true end

local function enter_ready(id, due, place, record)
  local band, tenant = lane_of(id, record)
  local at = tenant .. '\0' .. string.format('%013.0f', due) .. '\0' .. string.format('%04d', place or next_place())
  enter(READY[band], 0, at .. '\0' .. id)
  set(spots, id, band .. at)
  join(band, tenant)
end

-- One that rested may have its turns again, wherever it has work.
local function let_join(tenant)
  leave(resting, tenant)
  for band = 0, 4 do
    if #jobs_of(tenant, band, nil, 1) > 0 then join(band, tenant) end
  end
end

-- Tenants of whom something changed; and how many slots each has more than before.
local touched, freed_ones = {}, {}
local function freed(raw)
  local tenant = tenant_of_claim(raw)
  -- Runs count only where tenants have a cap: those that started before it was set do not.
  if tenant == '' then return end
  tenant = string.sub(tenant, 2)
  freed_ones[tenant] = (freed_ones[tenant] or 0) + 1
end

local function names_of(set_of)
  local names = {}
  for name in pairs(set_of) do names[#names + 1] = name end
  return names
end

-- Those who rest no longer, by this very call.
local awake = {}
local function give_slots_back()
  load_states(names_of(freed_ones))
  for tenant, slots in pairs(freed_ones) do
    local state = states[tenant]
    state.active, touched[tenant] = math.max(state.active - slots, 0), state
    if rests_until(tenant) == 'inf' then
      let_join(tenant)
      awake[tenant] = true
    end
  end
end

local function give_turns(band)
  local names = names_of(joining[band])
  local missing = {}
  for first = 1, #names, 4000 do
    local upto = math.min(first + 3999, #names)
    for i, tag in ipairs(redis.call('ZMSCORE', TURNS[band], unpack(names, first, upto))) do
      local tenant = names[first + i - 1]
      if not tag and (awake[tenant] or not rests_until(tenant)) then missing[#missing + 1] = tenant end
    end
  end
  load_states(missing)
  for _, tenant in ipairs(missing) do
    enter(TURNS[band], number_text(math.max(virtual_time(band), states[tenant].tags[band])), tenant)
  end
end

local function wake_all(rested)
  for _, tenant in ipairs(rested) do
    let_join(tenant)
    awake[tenant] = true
  end
  return #rested
end

-- Those whose rest is over; and those who rest, whether or not it is.
local function wake_resting()
  local woken = wake_all(redis.call('ZRANGEBYSCORE', resting, '-inf', now, 'LIMIT', 0, 1000))
  if redis.call('ZCARD', resting) > woken then
    -- Nobody rests longer than a run takes of the rate: the clock went back since.
    local longest = math.ceil(now + (tonumber(redis.call('HGET', meta, 'tenant_every')) or 0)) + 1
    local beyond = string.format('(%.0f', longest)
    woken = woken + wake_all(redis.call('ZRANGEBYSCORE', resting, beyond, '(inf', 'LIMIT', 0, 1000))
  end
  return woken > 0
end

local function stand_up(most) return wake_all(redis.call('ZRANGE', resting, 0, most - 1)) end

-- Work of those who rest is in line, and nobody's turn until they are rested.
local function head()
  for band = 0, 4 do
    if redis.call('ZCARD', TURNS[band]) > 0 then return paced(now) end
  end
  local line = waiting_head()
  local rested = redis.call('ZRANGE', resting, 0, 0, 'WITHSCORES')[2]
  if not rested or rested == 'inf' then return paced(line) end
  return paced(line < 0 and tonumber(rested) or math.min(line, tonumber(rested)))
end

local plain_apply = apply
local function apply(first)
  if next(freed_ones) then give_slots_back() end
  for band = 0, 4 do
    if next(joining[band]) then give_turns(band) end
  end
  for tenant, state in pairs(touched) do save_state(tenant, state) end
  remember_places()
  plain_apply(first)
  joining, touched, freed_ones, awake, any_resting = {[0] = {}, {}, {}, {}, {}}, {}, {}, {}, nil
end
