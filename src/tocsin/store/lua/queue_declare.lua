-- queue_declare: enter a queue into the register, or say how it stands there. An existing one is never changed.
-- KEYS   queues    HASH    queue -> order, partitions as msgpack
-- ARGV   name, settings: what to register it with
-- RETURN the settings as stored now
-- Nothing is written for one that exists: a full server would refuse it, and nobody could remove jobs there.
if redis.call('HEXISTS', queues, name) == 0 then redis.call('HSET', queues, name, settings) end
return redis.call('HGET', queues, name)
