-- declared_note: keep a set of agents that workers declare. Each of their heartbeats names the set.
-- KEYS   declared
-- ARGV   set, digests
-- RETURN 1
redis.call('HSET', declared, set, digests)
return 1
