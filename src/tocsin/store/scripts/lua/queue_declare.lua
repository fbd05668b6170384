-- queue_declare: enter a queue into the register, or say how it stands there. An existing one is never changed.
-- KEYS   queues
-- ARGV   name, settings: what to register it with
-- RETURN the settings as stored now
if redis.call('HEXISTS', queues, name) == 0 then
  -- The removal comes first, so that it passes on a full server: a worker that declares a new queue must come up to run
  -- the jobs of the others.
  redis.call('HDEL', queues, name)
  redis.call('HSET', queues, name, settings)
end
return redis.call('HGET', queues, name)
