-- ready: what the lines of ordered queues have in common. What is due stands in `ready`, by priority band.
local READY = {[0] = ready0, ready1, ready2, ready3, ready4}

-- Places tell apart what enters the line in the same millisecond: first come, first served. 4096 of them fit below the
-- millisecond of a score, more than a server can enter in one.
local placed_at, placed
local function next_place()
  if not placed_at then
    local last = redis.call('HGET', meta, 'placed') or ''
    local at, n = string.match(last, '^(%d+):(%d+)$')
    placed_at, placed = now, at and tonumber(at) == now and tonumber(n) or -1
  end
  placed = math.min(placed + 1, 4095)
  return placed
end

local function remember_places()
  if placed_at then set(meta, 'placed', string.format('%.0f:%d', placed_at, placed)) end
end

local function ready_count()
  local count = 0
  for band = 0, 4 do count = count + redis.call('ZCARD', READY[band]) end
  return count
end

local function waiting_head() return tonumber(first_waiting() or -1) end

-- Band and tenant of a record; one that cannot be read stands among the others until somebody meets it.
local function lane_of(id, record)
  record = record or redis.call('HGET', jobs, id)
  if not readable(record) then return 2, '' end
  return band_of(record), tenant_of(record)
end

local function stand_apart(id, due, record) enter_apart(id, due, (lane_of(id, record))) end
