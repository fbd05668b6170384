-- forget_outcomes: drop outcomes whose time is over, and of jobs that nobody named those beyond `most`, the oldest
-- first. Apart from remember.lua, because outcome_forget writes at once.
-- An id that somebody chose makes a put idempotent, so it stays for all of its time. Drops at most 1000 of each kind,
-- and returns how many.
local function forget_outcomes(most)
  if redis.call('ZCARD', done) == 0 then return 0 end
  local count, old = 0, redis.call('ZRANGEBYSCORE', done, '-inf', now, 'LIMIT', 0, 1000)
  for round = 1, 2 do
    if #old > 0 then
      redis.call('ZREM', done, unpack(old))
      redis.call('ZREM', unnamed, unpack(old))
      redis.call('HDEL', results, unpack(old))
      count = count + #old
    end
    local beyond = round == 1 and redis.call('ZCARD', unnamed) - most or 0
    old = beyond > 0 and redis.call('ZRANGE', unnamed, 0, math.min(beyond, 1000) - 1) or {}
  end
  return count
end
