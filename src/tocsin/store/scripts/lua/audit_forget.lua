-- audit_forget: drop sessions that will not call again, unless they have called since the caller read them.
-- KEYS   sessions
-- ARGV   items: msgpack [session, its first 16 bytes: seq and time] * n
-- RETURN how many were dropped
local flat = cmsgpack.unpack(items)
local dropped = 0
for at = 1, #flat, 2 do
  local raw = redis.call('HGET', sessions, flat[at])
  if raw and string.find(raw, flat[at + 1], 1, true) == 1 then
    dropped = dropped + redis.call('HDEL', sessions, flat[at])
  end
end
return dropped
