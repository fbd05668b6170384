-- score: what a score in `waiting` says beyond a due time. store/formats.py has the same numbers.
--
-- Below the millisecond stands, in 4096ths, the place of the job (claim.lua).
--
-- Far below zero stand suspects, apart from all others. A run that was recovered twice (SUSPECT in model/run.py) may be
-- what kills workers, so a worker tries only one of them at a time. In line every claim would have to pass them over,
-- so once they are due they stand apart: before all others, by priority band (0 in a queue of order `due`), then by due
-- time, at band * 2^48 + due - 2^52. A claim that may try some calls them into the line (claim_aside.lua); other claims
-- never see them. Tocsin writes no other score below -2^51.

-- As a number, and as bounds of ranges: up to the last suspect, and from the first other one.
local LAST_APART, APART_ONLY, NOT_APART = -2251799813685248, '-2251799813685248', '(-2251799813685248'
-- Places in a millisecond of a score.
local PLACES_IN_MS = 4096
-- How far the bands of suspects are from each other.
local APART_BAND = 281474976710656

-- The score of the first job that is not apart, as text, nil if there is none; and whether any stand apart.
local function first_waiting(waiting)
  local score = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  if not score or tonumber(score) > LAST_APART then return score, false end
  return redis.call('ZRANGEBYSCORE', waiting, NOT_APART, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2], true
end
