-- turns: read whose turn it is in a fair queue, and the jobs of the tenants whose turns they are.

-- Members of `ready`; tenant.lua has their layout.
-- The due time, the place and the id of a member of `ready`; nothing if Tocsin did not write it. By position, because
-- patterns are slow.
local function read_member(member, tenant)
  local from = #tenant + 2
  if byte(member, from + 13) ~= 0 or byte(member, from + 18) ~= 0 then return end
  local due, place = tonumber(sub(member, from, from + 12)), tonumber(sub(member, from + 14, from + 17))
  if due and place then return due, place, sub(member, from + 19) end
end

-- The id alone, whether or not Tocsin wrote the member.
local function id_in_member(member, tenant) return sub(member, #tenant + 21) end

-- Turns that were served and come again, in a heap: the first has the smallest tag.
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

-- The turns of each band, read from Redis as far as they are needed, and the jobs of the tenants whose
-- turns they are. A band has `read`: how many turns were read; `all`: whether there are no more; `at`: the first one
-- read that has not been served; `last`: the last one read, which goes before all that were not; `again`: a heap of
-- those that come again.
-- The first of a tenant's jobs that was not looked at yet. A few are read at a time: most are served once in a call.
local function next_member(turn)
  if not turn.page then
    turn.at, turn.size = 1, 2
    turn.page = members_of_tenant(READY[turn.band], turn.tenant, nil, 2)
  elseif turn.at > #turn.page and #turn.page == turn.size then
    turn.size = math.min(turn.size * 4, 512)
    turn.page = members_of_tenant(READY[turn.band], turn.tenant, turn.page[#turn.page], turn.size)
    turn.at, turn.records = 1, nil
  end
  return turn.page[turn.at]
end

-- Where many tenants have a turn each is served once or not at all, so their first records are read together.
local MANY = 16
local function read_first_records(search, turns)
  local ids, whose = {}, {}
  for at = 1, math.min(#turns, search.at_once) do
    local _, _, id = read_member(next_member(turns[at]) or '', turns[at].tenant)
    if id then ids[#ids + 1], whose[#whose + 1] = id, turns[at] end
  end
  if #ids == 0 then return end
  for i, record in ipairs(redis.call('HMGET', jobs, unpack(ids))) do whose[i].first_record = record end
end

-- As many as can be served are read at first, then some at a time.
local function read_turns(search, turns, band, most)
  local size = turns.read == 0 and most or 50
  local found, new, names = redis.call('ZRANGE', TURNS[band], turns.read, turns.read + size - 1, 'WITHSCORES'), {}, {}
  for at = 1, #found, 2 do
    local n = #new + 1
    new[n] = {band = band, tenant = found[at], tag = tonumber(found[at + 1])}
    names[n], turns[#turns + 1] = found[at], new[n]
  end
  if #found > 0 then turns.last = {tenant = found[#found - 1], tag = tonumber(found[#found])} end
  -- Without caps and rates, states are read only when a tenant leaves the turns.
  if search.is_limited then load_states(names) end
  if #new >= MANY then read_first_records(search, new) end
  turns.read, turns.all = turns.read + size, #found < size * 2
end

local function first_of(turns)
  local fresh, again = turns[turns.at], turns.again[1]
  if not again or (fresh and goes_before(fresh, again)) then return fresh end
  return again
end

-- The turn that comes next in a band.
local function turn_in(search, band, most)
  local turns = search.bands[band]
  if not turns then
    turns = {read = 0, at = 1, again = {}}
    search.bands[band] = turns
  end
  local first = first_of(turns)
  while not turns.all and not (first and not goes_before(turns.last, first)) do
    read_turns(search, turns, band, most)
    first = first_of(turns)
  end
  return first
end

-- The turn is no longer first, and does not come again.
local function take_off(turns, turn)
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

local function come_again(turns, turn)
  turns.again[#turns.again + 1] = turn
  sift_up(turns.again)
end
