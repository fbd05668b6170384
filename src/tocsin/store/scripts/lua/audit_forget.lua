-- audit_forget: drop sessions that will not call again, if they have not called since they were looked at.
-- KEYS   sessions  HASH    session -> seq, time, answer
-- ARGV   items: msgpack [session, its first 16 bytes: seq and time] * n
-- RETURN how many were dropped
local flat = cmsgpack.unpack(items)
local dropped = 0
for at = 1, #flat, 2 do
  local raw = redis.call('HGET', sessions, flat[at])
  if raw and string.sub(raw, 1, 16) == flat[at + 1] then
    dropped = dropped + redis.call('HDEL', sessions, flat[at])
  end
end
return dropped
