-- write_mark: write to keys and leave them as they were. WAIT waits for what its own connection wrote last, and with that
-- for all that was written before; so whoever waits for the writes of others writes this first.
-- KEYS   parts*    HASH    any, also one that is not there
-- RETURN 1
for _, key in ipairs(parts) do
  -- The removal comes first, so that it passes on a full server.
  redis.call('HDEL', key, '\0')
  redis.call('HSET', key, '\0', '')
  redis.call('HDEL', key, '\0')
end
return 1
