-- order: the line of a queue, where jobs wait for their turn. This is the order `due`: `waiting` alone is the line, and
-- what is due stands in it at its due time. order_priority.lua and order_fair.lua have the same functions.
-- KEYS   waiting
--@include score
--@include rate
--@include claim
--@include counts

-- A suspect leaves the line to stand apart from all others (score.lua).
local function stand_apart(id, due, record)
  call.stands_apart = true
  enter(waiting, string.format('%.0f', due + 2 * LAST_APART), id)
end

-- `claim`: what is known of the run, nil for a new one; `record`: the job's, if the caller has read it.
local function enter_line(id, not_before, claim, record)
  if claim and claim.recoveries > 1 and not_before <= now then return stand_apart(id, claim.due) end
  -- As `enter`, without the call: each run of a schedule comes by here.
  local list = writes.entering[waiting]
  if not list then
    list = {}
    writes.entering[waiting] = list
  end
  local n = #list
  list[n + 1], list[n + 2] = not_before, id
end

-- A run is not worked on any more; `raw` is its claim.
local function freed(raw) end

-- When the first in line may start; -1 if there is none. Suspects do not count: the workers that may try one know of
-- them.
local function head() return paced(tonumber(first_waiting(waiting) or -1)) end

-- Write all that was collected, and what the order keeps.
local write_all = apply

-- Successes that the record of a recurring job does not count yet. Updating a counter rewrites the whole record,
-- which is long, so the successes of a schedule reach it up to sixteen at a time. Until then their number
-- stands below the millisecond of the job's score, in sixteenths; a claim has it in the first byte of its place.
local SIXTEENTHS = {'.0625', '.125', '.1875', '.25', '.3125', '.375', '.4375', '.5', '.5625', '.625', '.6875', '.75',
  '.8125', '.875', '.9375'}

local function uncounted_in(raw) return byte(raw, UNCOUNTED_AT) end

-- What to append to the next due time so that one more success is counted later; nil: count them now.
-- Every seventeenth call counts all of its successes, or schedules that began together would be written together.
local function uncounted_with_one_more(raw)
  if call.version % 17 == 0 then return nil end
  return SIXTEENTHS[uncounted_in(raw) + 1]
end

-- The record with all the successes that it does not count yet.
-- `from`: the job's claim, or its entry in line if it has no claim. It is emptied, so write the claim after this.
local function with_uncounted(record, from)
  local uncounted = math.floor(from.place / 256)
  if uncounted == 0 then return record end
  from.place = 0
  return counted(record, uncounted, 0, uncounted)
end
