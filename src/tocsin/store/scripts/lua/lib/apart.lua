-- apart: where suspects wait. A run that was recovered twice (SUSPECT in model/run.py) may be what kills workers, so a
-- worker tries only one of them at a time. In line they would have to be passed over in each claim, so from the moment
-- that they are due they stand apart: in `waiting`, before all others, by their priority band (0 in a queue of order
-- `due`), then by their due time: band * 2^48 + due - 2^52. A claim that may take some calls them up
-- (lib/suspects.lua); no other comes by. store/formats.py has the same numbers. Nobody who keeps to these scripts writes
-- another score below -2^51.

-- Whether this call has let one stand there.
local stands_apart = false

local function is_apart(score) return score <= -2251799813685248 end

-- 0 for what is no number any more: somebody wrote -inf.
local function due_apart(score)
  local due = (score + 4503599627370496) % 281474976710656
  return due == due and due or 0
end

local function enter_apart(id, due, band)
  stands_apart = true
  enter(waiting, string.format('%.0f', band * 281474976710656 + due - 4503599627370496), id)
end

-- When the first of the others in `waiting` may start, as text; nil if there is none. Whether some stand apart.
local function first_waiting()
  local score = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  if not score or not is_apart(tonumber(score)) then return score, false end
  return redis.call('ZRANGEBYSCORE', waiting, '(-2251799813685248', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2], true
end
