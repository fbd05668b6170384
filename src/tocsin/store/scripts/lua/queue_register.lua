-- queue_register: change how a queue stands in the register, if it stands there as the caller believes.
-- KEYS   queues    HASH    queue -> order, partitions as msgpack
-- ARGV   name, expected, settings
-- RETURN the settings as stored now: the same answer when it is repeated
if redis.call('HGET', queues, name) == expected then redis.call('HSET', queues, name, settings) end
return redis.call('HGET', queues, name)
