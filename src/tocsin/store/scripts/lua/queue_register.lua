-- queue_register: change how a queue stands in the register, if it stands there as the caller believes.
-- KEYS   queues
-- ARGV   name, expected, settings, frees: '1' to pass on a full server, '' or left out for not
-- RETURN the settings as stored now: the same answer when it is repeated
if redis.call('HGET', queues, name) == expected then
  -- A full server lets a script go on that begins with a removal. A repartition needs memory and must not begin there.
  if frees == '1' then redis.call('HDEL', queues, name) end
  redis.call('HSET', queues, name, settings)
end
return redis.call('HGET', queues, name)
