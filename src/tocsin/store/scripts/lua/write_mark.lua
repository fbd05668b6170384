-- write_mark: write to keys and leave them as they were. WAIT waits for the last write of its own
-- connection, and so for all writes before it. To wait for the writes of others, make this write first.
-- KEYS   parts*
-- RETURN 1
for _, key in ipairs(parts) do
  -- The removal comes first, so that it passes on a full server.
  redis.call('HDEL', key, '\0')
  redis.call('HSET', key, '\0', '')
  redis.call('HDEL', key, '\0')
end
return 1
