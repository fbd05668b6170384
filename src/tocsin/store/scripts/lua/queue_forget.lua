-- queue_forget: take a queue off the register, if it stands there as the caller believes.
-- KEYS   queues
-- ARGV   name, expected
-- RETURN 1 it is off the register, now or before; 0 it stands there otherwise (nothing changed)
local stored = redis.call('HGET', queues, name)
if stored and stored ~= expected then return 0 end
redis.call('HDEL', queues, name)
return 1
