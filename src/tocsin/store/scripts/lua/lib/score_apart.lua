-- score_apart: let a suspect stand apart. Its score is explained in score.lua.
local function apart_score(band, due) return string.format('%.0f', band * 281474976710656 + due - 4503599627370496) end

local function enter_apart(id, due, band)
  call.stands_apart = true
  enter(waiting, apart_score(band, due), id)
end
