-- line_entry: where a job stands in line, and how it leaves. This is the order `due`; line_entry_priority.lua and
-- line_entry_fair.lua have the same functions.
-- An entry in line has due: the time before which the job does not start, where no claim knows better; score: that as
-- text; place (claim.lua); and in ordered queues the band if the job is ready, or whether it stands apart.
--@include score_parts
local function line_entry_of(id)
  local score = tonumber(redis.call('ZSCORE', waiting, id) or nil)
  if not score then return nil end
  local due, place = split_score(score)
  return {due = due, score = string.format('%.0f', due), place = place}
end

local function leave_line(id, entry) leave(waiting, id) end

-- Of `ready` only, which this order does not have; `leave_ready` wherever the job stands there.
local function ready_entry_of(id) end
local function leave_ready(id) end
