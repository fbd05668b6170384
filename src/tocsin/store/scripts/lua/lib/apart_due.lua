-- apart: a suspect leaves the line to stand apart from all others, or comes back to it (score.lua).
local function stand_apart(id, due, record) enter_apart(id, due, 0) end
local function enter_ready(id, due, place, record) enter(waiting, string.format('%.0f', due), id) end
