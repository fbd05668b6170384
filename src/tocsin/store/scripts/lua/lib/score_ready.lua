-- score_ready: a score in `ready` of a queue of order `priority`: the due time, with the place below its millisecond as
-- in score.lua.
local function ready_score(due, place) return string.format('%.6f', due + place / 4096) end
