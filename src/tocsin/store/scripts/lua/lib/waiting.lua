-- waiting: where jobs wait until they are due, and where suspects stand apart (score.lua).
--@include score
-- The score of the first job that is not apart, as text, nil if there is none; and whether any stand apart.
local function first_waiting()
  local score = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  if not score or tonumber(score) > LAST_APART then return score, false end
  return redis.call('ZRANGEBYSCORE', waiting, NOT_APART, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2], true
end
