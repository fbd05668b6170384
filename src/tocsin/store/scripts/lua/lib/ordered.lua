-- ordered: what the lines of order_priority.lua and order_fair.lua have in common.
-- What is not due yet is in `waiting`; what is due is in `ready`, by priority band.
--@include score
--@include rate
--@include record_line

-- Places tell apart what enters the line in the same millisecond: first come, first served. That is more than a server
-- can enter in one.
local function next_place()
  if not call.last_place then
    local at, n = string.match(redis.call('HGET', meta, 'placed') or '', '^(%d+):(%d+)$')
    call.last_place = at and tonumber(at) == now and tonumber(n) or -1
  end
  call.last_place = math.min(call.last_place + 1, PLACES_IN_MS - 1)
  return call.last_place
end

local function remember_places()
  if call.last_place then set(meta, 'placed', string.format('%.0f:%d', now, call.last_place)) end
end

local function waiting_head() return tonumber(first_waiting(waiting) or -1) end

-- A job whose record cannot be read stands in the middle band until somebody meets it.
local function band_and_tenant(id, record)
  record = record or redis.call('HGET', jobs, id)
  if not is_readable(record) then return 2, '' end
  return band_of(record), tenant_of(record)
end

-- How many jobs are in `ready`, in all bands.
local function ready_count()
  local count = 0
  for band = 0, 4 do count = count + redis.call('ZCARD', READY[band]) end
  return count
end

-- A suspect leaves the line to stand apart from all others (score.lua).
local function stand_apart(id, due, record)
  local band = band_and_tenant(id, record)
  call.stands_apart = true
  enter(waiting, string.format('%.0f', band * APART_BAND + due + 2 * LAST_APART), id)
end

-- The order of the queue defines it, with what this file has: enter_ready(id, due, place, record).
local enter_ready = nil

-- What is not due yet waits.
local function enter_line(id, not_before, claim, record)
  not_before = tonumber(not_before)
  if not_before > now then
    enter(waiting, string.format('%.0f', not_before), id)
  elseif claim and claim.recoveries > 1 then
    stand_apart(id, claim.due, record)
  else
    enter_ready(id, claim and claim.due or not_before, claim and claim.place, record)
  end
end

-- As in order_due.lua. In ordered queues each success is counted at once, because what stands below a millisecond there
-- is the place in line.
local function uncounted_in(raw) return 0 end
local function uncounted_with_one_more(raw) end
local function with_uncounted(record, from) return record end
