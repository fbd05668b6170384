-- claim_order: as claim_order_priority.lua, for the order `fair`: decide whose turn it is, run by run. Bands are strict
-- or aged as there; within a band the tenant with the smallest start tag is served and charged cost / weight. A tenant
-- that is at its cap, or ahead of its rate, rests. Everything is worked out here before anything is written.
-- KEYS   weights
--@include turns

-- The job of a tenant's turn that was not looked at yet, and its record.
local function record_at(search, turn, id)
  if turn.first_record ~= nil and turn.at == 2 and turn.size == 2 then return turn.first_record end
  if turn.size == 2 then return redis.call('HGET', jobs, id) end
  -- A tenant that is served more than twice has more records read at once.
  local at = turn.at - 1
  if not turn.records or at > turn.records_to then
    turn.records_from, turn.records_to = at, math.min(at + math.min(search.at_once, 16) - 1, #turn.page)
    local ids = {}
    for i = at, turn.records_to do ids[#ids + 1] = id_in_member(turn.page[i], turn.tenant) end
    turn.records = redis.call('HMGET', jobs, unpack(ids))
  end
  return turn.records[at - turn.records_from + 1]
end

-- Turns that are to be written: they have another tag, or the tenant has left the band.
local function note_turn(search, turn)
  if not turn.noted then
    turn.noted = true
    search.moved[#search.moved + 1] = turn
  end
end

local function leave_turns(search, turn)
  local fair = search.fair
  if not fair.states[turn.tenant] then load_states({turn.tenant}) end
  local state = fair.states[turn.tenant]
  state.tags[turn.band], fair.touched[turn.tenant] = turn.tag, state
  turn.left, search.gone = true, search.gone + 1
  note_turn(search, turn)
  take_off(search.bands[turn.band], turn)
end

-- The turn that comes next in all bands.
local function first_turn(search, most)
  local best, first
  for band = 0, 4 do
    local turn = turn_in(search, band, most)
    if turn and not search.aging then return turn end
    if turn then
      local member = next_member(turn)
      local due = member and read_member(member, turn.tenant) or 0
      if not best or due + band * search.aging < best then best, first = due + band * search.aging, turn end
    end
  end
  return first
end

local function rest(search, turn, till)
  leave_turns(search, turn)
  enter(resting, till, turn.tenant)
end

local function weight_of(search, turn)
  if not search.any_weights then return 1 end
  if not turn.weight then
    local weight = tonumber(redis.call('HGET', weights, turn.tenant))
    turn.weight = weight and weight > 0 and weight or 1
  end
  return turn.weight
end

-- The time up to which a tenant has used its rate.
local function rated_of(search, state) return spent_by(search.tenant_every, search.tenant_burst, state.rated) end

-- The virtual time of a band is where the tenant that is served begins, and some of its way on. So of the tenants that
-- come after it each stands behind those that came before, and what is known of tenants that come once is over soon.
local function move_virtual_time(search, band, from, to)
  local before = virtual_time(band)
  search.fair.virtual[band] = math.max(from, math.min(before + math.min(to - from, 1) / 64, to))
  search.served[band] = true
end

-- A tenant is charged for what it starts, not for what is set aside.
local function charge(search, turn, record)
  local fair = search.fair
  if search.is_limited then
    local state = fair.states[turn.tenant]
    fair.touched[turn.tenant] = state
    if search.tenant_cap and #turn.tenant < 255 then state.active = state.active + 1 end
    if search.tenant_every then state.rated = rated_of(search, state) + search.tenant_every end
  end
  local tag = turn.tag
  turn.tag = tag + math.max(cost_of(record), 1) / weight_of(search, turn)
  move_virtual_time(search, turn.band, tag, turn.tag)
end

-- Take the first job of the tenant whose turn it is.
local function serve(batch, search, turn)
  local tenant, member = turn.tenant, next_member(turn)
  if not member then return leave_turns(search, turn) end
  turn.at = turn.at + 1
  local due, place, id = read_member(member, tenant)
  if not id then return leave(READY[turn.band], member) end
  local record = record_at(search, turn, id)
  local raw = not batch.no_unfinished_runs and redis.call('HGET', claims, id) or nil
  if not is_claim(raw) then raw = nil end
  leave(READY[turn.band], member)
  drop(spots, id)
  if not is_understood(batch, record) then return park(batch, id, due, place, record, raw) end
  if raw and is_suspect(raw) then
    if batch.suspects_left < 1 then
      batch.sent_apart = batch.sent_apart + 1
      return stand_apart(id, due_of_claim(raw), record)
    end
    batch.suspects_left = batch.suspects_left - 1
  end
  local counts_for = search.tenant_cap and #tenant < 255 and packed_tenant(tenant) or nil
  accept(batch, id, record, raw and claim_again(batch, raw, counts_for) or new_claim_for(batch, due, place, counts_for))
  -- It is taken off before it is charged, because where it stands depends on its tag.
  local more = next_member(turn)
  if more then take_off(search.bands[turn.band], turn) end
  charge(search, turn, record)
  if not more then return leave_turns(search, turn) end
  note_turn(search, turn)
  come_again(search.bands[turn.band], turn)
end

-- Drop tenants whose state says nothing any more: a few more of them than left just now, so that they do not add up.
local function forget_tenants(search)
  if redis.call('HLEN', tenants) < 100 then return end
  local fair = search.fair
  local found = redis.call('HRANDFIELD', tenants, -math.min(search.gone, 1000) - 2, 'WITHVALUES')
  for at = 1, #found, 2 do
    local state = fair.states[found[at]] or read_state(found[at + 1])
    if is_default_state(state) then fair.touched[found[at]] = state end
  end
end

local function write_turns(search)
  for band in pairs(search.served) do set(meta, 'v' .. band, number_text(search.fair.virtual[band])) end
  for _, turn in ipairs(search.moved) do
    if turn.left then
      leave(TURNS[turn.band], turn.tenant)
    else
      enter(TURNS[turn.band], turn.tag, turn.tenant)
    end
  end
end

-- The state of a search for whose turn it is.
--   bands    by band: the turns read so far (turns.lua)
--   moved    turns that are to be written; `served` are bands whose virtual time is
--   gone     how many tenants have left a band
local function begin_search(batch)
  local set_to = redis.call('HMGET', meta, 'aging', 'tenant_max_active', 'tenant_every', 'tenant_burst')
  local search = {
    aging = tonumber(set_to[1]), tenant_cap = tonumber(set_to[2]), tenant_every = tonumber(set_to[3]),
    tenant_burst = tonumber(set_to[4]) or 0, any_weights = redis.call('HLEN', weights) > 0, at_once = batch.at_once,
    fair = fair_state(), bands = {}, moved = {}, served = {}, gone = 0,
  }
  search.is_limited = search.tenant_cap or search.tenant_every
  return search
end

local function claim_in_order(batch, most)
  local search, looked_at = begin_search(batch), 0
  while #batch.ids < most and batch.bytes < LARGEST and batch.parked < 1000 and looked_at < most + 1000 do
    looked_at = looked_at + 1
    local turn = first_turn(search, most)
    if not turn then break end
    local state = search.is_limited and search.fair.states[turn.tenant]
    if search.tenant_cap and state.active >= search.tenant_cap then
      rest(search, turn, '+inf')
    elseif search.tenant_every and rated_of(search, state) > now + search.tenant_burst then
      rest(search, turn, string.format('%.0f', math.ceil(rated_of(search, state) - search.tenant_burst)))
    else
      serve(batch, search, turn)
    end
  end
  write_turns(search)
  forget_tenants(search)
end
