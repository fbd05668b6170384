-- forget: drop outcomes that are remembered no longer.

-- What is past its time; and of jobs that nobody named, those beyond `most`, the oldest first. An id that somebody chose
-- makes a put idempotent, so it stays for all of its time. At most 1000 of each kind, and how many that were.
local function forget(most)
  local count = 0
  local function drop_all(old)
    if #old == 0 then return end
    redis.call('ZREM', done, unpack(old))
    redis.call('ZREM', unnamed, unpack(old))
    redis.call('HDEL', results, unpack(old))
    count = count + #old
  end
  if redis.call('ZCARD', done) == 0 then return 0 end
  drop_all(redis.call('ZRANGEBYSCORE', done, '-inf', now, 'LIMIT', 0, 1000))
  local beyond = redis.call('ZCARD', unnamed) - most
  if beyond > 0 then drop_all(redis.call('ZRANGE', unnamed, 0, math.min(beyond, 1000) - 1)) end
  return count
end
