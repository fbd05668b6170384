-- uncounted: successes that the record of a recurring job does not count yet. Updating a counter rewrites the whole
-- record, which is long, so the successes of a schedule reach it up to sixteen at a time. Until then their number
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
