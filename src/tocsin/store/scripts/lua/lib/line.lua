-- line: where jobs wait for their turn. In a queue of order `due` that is `waiting` alone. Queues of another order have
-- line_priority.lua or line_fair.lua here, with the same functions.

-- To count a run in a record is to write all of the record, which is long. So the successes of a schedule reach it up to
-- sixteen at a time. Until then their number stands below the millisecond of the job's score, in sixteenths, or where
-- there is an entry in `claims`, in that one's place: it is the first byte of that.
local UNCOUNTED = {'.0625', '.125', '.1875', '.25', '.3125', '.375', '.4375', '.5', '.5625', '.625', '.6875', '.75',
  '.8125', '.875', '.9375'}

-- How many successes the record of a job does not have yet. `raw` is its claim.
local function uncounted_in(raw) return string.byte(raw, 9) end

-- What is to stand below the millisecond of its next due time, so that one more is counted later; nil: count it now.
-- Now and then a call counts all that it is told: else schedules that began together would be written together.
local function uncounted_with_one_more(raw)
  if version % 17 == 0 then return nil end
  return UNCOUNTED[uncounted_in(raw) + 1]
end

-- The record with all that it does not have yet. `from` is the job's claim, or its spot if it has none, and must not be
-- kept as it was.
local function caught_up(record, from)
  local uncounted = math.floor(from.place / 256)
  if uncounted == 0 then return record end
  from.place = 0
  return counted(record, uncounted, 0, uncounted)
end

-- Where a job stands in line; nil if it does not. `due` is its not-before, where no claim knows better.
local function spot_of(id)
  local score = tonumber(redis.call('ZSCORE', waiting, id) or nil)
  if not score then return nil end
  if is_apart(score) then score = due_apart(score) end
  local due = math.floor(score)
  return {due = due, score = string.format('%.0f', due), place = math.max(0, (score - due) * 4096)}
end

local function ready_spot(id) end
local function leave_ready(id) end

local function leave_line(id) leave(waiting, id) end

local function stand_apart(id, due, record) enter_apart(id, due, 0) end

-- `claim`: what is known of the run, if anything is; `record`: if the caller has read it.
local function enter_line(id, not_before, claim, record)
  if claim and claim.recoveries > 1 and not_before <= now then return stand_apart(id, claim.due) end
  -- Each run of a schedule comes here: without a call of another function.
  local list = into[waiting]
  if not list then
    list = {}
    into[waiting] = list
  end
  local n = #list
  list[n + 1], list[n + 2] = not_before, id
end

-- What is due stands in the same set, at its due time.
local function enter_ready(id, due, place, record) enter(waiting, string.format('%.0f', due), id) end

-- A run is worked on no longer. `raw` is its claim as it stands.
local function freed(raw) end

local function stand_up(most) return 0 end

-- When the first in line may start; -1 if there is none. Suspects do not count: who may try one knows of them.
local function head() return paced(tonumber(first_waiting() or -1)) end
