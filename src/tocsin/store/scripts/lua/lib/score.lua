-- score: what a score in `waiting` says beyond a due time. This file and the others whose names begin with `score` are
-- the only Lua that knows; store/suspect_scores.py has the same numbers.
--
-- Below the millisecond stands, in 4096ths, the place of the job (claim.lua).
--
-- Far below zero stand suspects, apart from all others. A run that was recovered twice (SUSPECT in model/run.py) may be
-- what kills workers, so a worker tries only one of them at a time. In line every claim would have to pass them over,
-- so once they are due they stand apart: before all others, by priority band (0 in a queue of order `due`), then by due
-- time, at band * 2^48 + due - 2^52. A claim that may try some calls them into the line (suspects.lua); other claims
-- never see them. Tocsin writes no other score below -2^51.

-- As a number, and as bounds of ranges: up to the last suspect, and from the first other one.
local LAST_APART, APART_ONLY, NOT_APART = -2251799813685248, '-2251799813685248', '(-2251799813685248'
-- Scores up to the end of a millisecond end in this.
local END_OF_MS = '.9375'
