-- queue_declare: enter a queue into the register, or say how it stands there. An existing one is never changed.
-- KEYS   queues    HASH    queue -> order, partitions as msgpack
-- ARGV   name, settings: what to register it with
-- RETURN the settings as stored now
redis.call('HSETNX', queues, name, settings)
return redis.call('HGET', queues, name)
