-- mail_post: leave a worker a message that it would otherwise learn later. Sent again after a lost reply, it is there
-- once.
-- KEYS   mail
-- ARGV   message
-- RETURN how many messages wait, at most 1000
-- The removals come first, so that it passes on a full server.
redis.call('LREM', mail, 0, message)
redis.call('LTRIM', mail, -999, -1)
local count = redis.call('RPUSH', mail, message)
redis.call('EXPIRE', mail, 60)
return count
