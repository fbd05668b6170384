-- session_end: forget sessions that will not call again.
-- KEYS   sessions
-- ARGV   names: msgpack [session] * n
-- RETURN how many there were
return redis.call('HDEL', sessions, unpack(cmsgpack.unpack(names)))
