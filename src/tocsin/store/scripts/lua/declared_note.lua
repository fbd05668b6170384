-- declared_note: keep a set of agents that workers declare, under the name by which they tell of it with each beat.
-- KEYS   declared  HASH    set -> digests of the agents in it
-- ARGV   set, digests
-- RETURN 1
redis.call('HSET', declared, set, digests)
return 1
