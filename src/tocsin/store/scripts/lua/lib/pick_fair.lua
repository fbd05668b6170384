-- pick: whose turn it is in a queue of order `fair`, run by run. Bands strict or aged as in pick_priority.lua; within a
-- band the tenant with the smallest start tag is served and charged cost / weight. One at its cap, or ahead of its rate,
-- rests. All is worked out here before anything is written. In a block of its own: a script has at most 200 locals.
local pick
do
  local fair = redis.call('HMGET', meta, 'aging', 'tenant_max_active', 'tenant_every', 'tenant_burst')
  local aging, tenant_cap, tenant_every, tenant_burst =
    tonumber(fair[1]), tonumber(fair[2]), tonumber(fair[3]), tonumber(fair[4]) or 0
  local is_limited = tenant_cap or tenant_every
  local any_weights = redis.call('HLEN', weights) > 0

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

  -- The parts of a member of `ready`; nil if it is none of ours.
  local function read_member(member, tenant)
    local from = #tenant + 2
    if string.byte(member, from + 13) ~= 0 or string.byte(member, from + 18) ~= 0 then return end
    local due, place = tonumber(string.sub(member, from, from + 12)), tonumber(string.sub(member, from + 14, from + 17))
    if due and place then return due, place, string.sub(member, from + 19) end
  end

  -- Where many have a turn each is served once or not at all: what they begin with is read together.
  local MANY = 16
  local function read_first_records(new)
    local ids, whose = {}, {}
    for at = 1, math.min(#new, at_once) do
      local _, _, id = read_member(next_job(new[at]) or '', new[at].tenant)
      if id then ids[#ids + 1], whose[#whose + 1] = id, new[at] end
    end
    if #ids == 0 then return end
    for i, record in ipairs(redis.call('HMGET', jobs, unpack(ids))) do whose[i].first = record end
  end

  -- The turns of a band: those read from Redis, which come in order, from `at` on; and in a heap those that were served
  -- and come again. `last` is the last one read: who is not read yet comes after it.
  -- As many are read as can be served, then some at a time.
  local function read_turns(turns, band, most)
    local size = turns.read == 0 and most or 50
    local found, new, names = redis.call('ZRANGE', TURNS[band], turns.read, turns.read + size - 1, 'WITHSCORES'), {}, {}
    for at = 1, #found, 2 do
      local n = #new + 1
      new[n] = {band = band, tenant = found[at], tag = tonumber(found[at + 1])}
      names[n], turns[#turns + 1] = found[at], new[n]
    end
    if #found > 0 then turns.last = {tenant = found[#found - 1], tag = tonumber(found[#found])} end
    -- Without caps and rates they are asked for only when somebody leaves the turns.
    if is_limited then load_states(names) end
    if #new >= MANY then read_first_records(new) end
    turns.read, turns.all = turns.read + size, #found < size * 2
  end

  local function first_of(turns)
    local fresh, again = turns[turns.at], turns.again[1]
    if not again or (fresh and goes_before(fresh, again)) then return fresh end
    return again
  end

  local lines = {}
  local function turn_in(band, most)
    local turns = lines[band]
    if not turns then
      turns = {read = 0, at = 1, again = {}}
      lines[band] = turns
    end
    local first = first_of(turns)
    while not turns.all and not (first and not goes_before(turns.last, first)) do
      read_turns(turns, band, most)
      first = first_of(turns)
    end
    return first
  end

  -- It is no longer first, and does not come again.
  local function take_off(turn)
    local turns = lines[turn.band]
    if turns[turns.at] == turn then
      turns.at = turns.at + 1
      return
    end
    local heap = turns.again
    local last = #heap
    heap[1] = heap[last]
    heap[last] = nil
    if last > 2 then sift_down(heap) end
  end

  local function come_again(turn)
    local heap = lines[turn.band].again
    heap[#heap + 1] = turn
    sift_up(heap)
  end

  -- Turns that are to be written: they have another tag, or none any more.
  local moved = {}
  local function note(turn)
    if not turn.noted then
      turn.noted = true
      moved[#moved + 1] = turn
    end
  end

  -- How many tenants went, so that as many again are looked at who may be forgotten.
  local gone = 0
  local function leave_turns(turn)
    if not states[turn.tenant] then load_states({turn.tenant}) end
    local state = states[turn.tenant]
    state.tags[turn.band], touched[turn.tenant] = turn.tag, state
    turn.left, gone = true, gone + 1
    note(turn)
    take_off(turn)
  end

  -- The record of the job before `turn.at`. Whoever is served more than twice has more than one read at once.
  local function record_at(turn, id)
    if turn.first ~= nil and turn.at == 2 and turn.size == 2 then return turn.first end
    if turn.size == 2 then return redis.call('HGET', jobs, id) end
    local at = turn.at - 1
    if not turn.records or at > turn.records_to then
      turn.records_from, turn.records_to = at, math.min(at + math.min(at_once, 16) - 1, #turn.page)
      local ids = {}
      for i = at, turn.records_to do ids[#ids + 1] = string.sub(turn.page[i], #turn.tenant + 21) end
      turn.records = redis.call('HMGET', jobs, unpack(ids))
    end
    return turn.records[at - turn.records_from + 1]
  end

  local function first_turn(most)
    local best, first
    for band = 0, 4 do
      local turn = turn_in(band, most)
      if turn and not aging then return turn end
      if turn then
        local member = next_job(turn)
        local due = member and read_member(member, turn.tenant) or 0
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

  -- Up to when a tenant has used its rate.
  local function rated_of(state) return spent_by(tenant_every, tenant_burst, state.rated) end

  local function accept(tenant, id, due, place, record, raw)
    local claim
    if raw then
      claim = before_due .. string.sub(raw, 9, 23)
    else
      claim = before_due .. struct.pack('>I2I6I4I2B', place, due, 1, 0, 0)
    end
    claim = claim .. by_owner .. (tenant_cap and #tenant < 255 and string.char(#tenant + 1) .. '=' .. tenant or string.char(0))
    enter(working, deadlines[string.sub(record, 6, 9)] or deadline_of(record), id)
    set(claims, id, claim)
    local n = #taken + 1
    taken[n], all_records[n], stamps[n] = id, record, stamp_of(claim)
    bytes = bytes + #record
  end

  -- Bands whose virtual time has moved. It is where the tenant that is served begins; and some of its way on, so that of
  -- those who come after it each stands behind those who came before, and what is known of tenants who come once is over
  -- soon.
  local served = {}
  local function move_virtual_time(band, from, to)
    local before = virtual_time(band)
    virtual[band] = math.max(from, math.min(before + math.min(to - from, 1) / 64, to))
    served[band] = true
  end

  local function charge(turn, record)
    if is_limited then
      local state = states[turn.tenant]
      touched[turn.tenant] = state
      if tenant_cap and #turn.tenant < 255 then state.active = state.active + 1 end
      if tenant_every then state.rated = rated_of(state) + tenant_every end
    end
    local tag = turn.tag
    turn.tag = tag + math.max(cost_of(record), 1) / weight_of(turn)
    move_virtual_time(turn.band, tag, turn.tag)
  end

  -- Takes the first job of the tenant whose turn it is. It is charged for what it starts, not for what is set aside.
  local function serve(turn)
    local tenant, member = turn.tenant, next_job(turn)
    if not member then return leave_turns(turn) end
    turn.at = turn.at + 1
    local due, place, id = read_member(member, tenant)
    if not id then return leave(READY[turn.band], member) end
    local record = record_at(turn, id)
    local raw = not all_fresh and redis.call('HGET', claims, id) or nil
    if not is_claim(raw) then raw = nil end
    leave(READY[turn.band], member)
    drop(spots, id)
    if not understood(record) then return park(id, due, place, record, raw) end
    if raw and is_suspect(raw) then
      if suspects_left < 1 then
        apart_count = apart_count + 1
        return stand_apart(id, due_of(raw), record)
      end
      suspects_left = suspects_left - 1
    end
    accept(tenant, id, due, place, record, raw)
    -- Off before it is charged: where it stands depends on its tag.
    local more = next_job(turn)
    if more then take_off(turn) end
    charge(turn, record)
    if not more then return leave_turns(turn) end
    note(turn)
    come_again(turn)
  end

  -- Tenants of whom nothing need be known any more; a few more of them than went just now, so that they do not add up.
  local function forget_tenants()
    if redis.call('HLEN', tenants) < 100 then return end
    local found = redis.call('HRANDFIELD', tenants, -math.min(gone, 1000) - 2, 'WITHVALUES')
    for at = 1, #found, 2 do
      local state = states[found[at]] or read_state(found[at + 1])
      if says_nothing(state) then touched[found[at]] = state end
    end
  end

  pick = function(most)
    local looked_at = 0
    while #taken < most and bytes < LARGEST and #parkings < 1000 and looked_at < most + 1000 do
      looked_at = looked_at + 1
      local turn = first_turn(most)
      if not turn then break end
      local state = is_limited and states[turn.tenant]
      if tenant_cap and state.active >= tenant_cap then
        rest(turn, '+inf')
      elseif tenant_every and rated_of(state) > now + tenant_burst then
        rest(turn, string.format('%.0f', math.ceil(rated_of(state) - tenant_burst)))
      else
        serve(turn)
      end
    end
    for band in pairs(served) do set(meta, 'v' .. band, number_text(virtual[band])) end
    for _, turn in ipairs(moved) do
      if turn.left then
        leave(TURNS[turn.band], turn.tenant)
      else
        enter(TURNS[turn.band], turn.tag, turn.tenant)
      end
    end
    forget_tenants()
  end
end
