-- declared_forget: drop sets of agents that no worker declares. One that a worker has after all is noted by it again.
-- KEYS   declared
-- ARGV   items: msgpack [set] * n, at most 1000
-- RETURN how many were dropped
return redis.call('HDEL', declared, unpack(cmsgpack.unpack(items)))
