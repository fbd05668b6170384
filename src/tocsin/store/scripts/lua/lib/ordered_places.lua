-- ordered_places: what the lines of ordered queues have in common. What is not due yet is in `waiting`; what is due is
-- in `ready`, by priority band.
--@include waiting
--@include score_apart
--@include rate
--@include record_line

-- Places tell apart what enters the line in the same millisecond: first come, first served. 4096 of them fit below the
-- millisecond of a score, more than a server can enter in one.
local function next_place()
  if not call.last_place then
    local at, n = string.match(redis.call('HGET', meta, 'placed') or '', '^(%d+):(%d+)$')
    call.last_place = at and tonumber(at) == now and tonumber(n) or -1
  end
  call.last_place = math.min(call.last_place + 1, 4095)
  return call.last_place
end

local function remember_places()
  if call.last_place then set(meta, 'placed', string.format('%.0f:%d', now, call.last_place)) end
end

local function waiting_head() return tonumber(first_waiting() or -1) end

-- A job whose record cannot be read stands in the middle band until somebody meets it.
local function band_and_tenant(id, record)
  record = record or redis.call('HGET', jobs, id)
  if not is_readable(record) then return 2, '' end
  return band_of(record), tenant_of(record)
end
