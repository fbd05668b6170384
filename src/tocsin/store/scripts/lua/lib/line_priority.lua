-- line_priority: as line.lua, in bands; within a band by due time, then first come, first served.
-- `ready` has id -> due, with the place below the millisecond.
local function score_of(due, place) return string.format('%.6f', due + place / 4096) end

local function ready_spot(id)
  for band = 0, 4 do
    local score = redis.call('ZSCORE', READY[band], id)
    if score then
      local due = math.floor(tonumber(score))
      return {band = band, due = due, score = string.format('%.0f', due), place = (tonumber(score) - due) * 4096}
    end
  end
end

local function leave_line(id, spot) leave(spot.band and READY[spot.band] or waiting, id) end

-- Wherever it stands there, also if it should not.
local function leave_ready(id)
  for band = 0, 4 do leave(READY[band], id) end
end

local function enter_ready(id, due, place, record)
  local band = lane_of(id, record)
  enter(READY[band], score_of(due, place or next_place()), id)
end

local function freed(raw) end
local function wake_resting() return false end
local function stand_up(most) return 0 end

local function head() return paced(ready_count() > 0 and now or waiting_head()) end

local plain_apply = apply
local function apply(first)
  remember_places()
  plain_apply(first)
end
