-- line_entry: as line_entry_due.lua. `ready` has id -> due, with the place below the millisecond.
--@include score_parts
local function ready_entry_of(id)
  for band = 0, 4 do
    local score = redis.call('ZSCORE', READY[band], id)
    if score then
      local due, place = split_score(tonumber(score))
      return {band = band, due = due, score = string.format('%.0f', due), place = place}
    end
  end
end

local function leave_line(id, entry) leave(entry.band and READY[entry.band] or waiting, id) end

local function leave_ready(id)
  for band = 0, 4 do leave(READY[band], id) end
end
--@include ordered_entry
