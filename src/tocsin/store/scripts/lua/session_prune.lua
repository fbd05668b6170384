-- session_prune: forget sessions that have not called for a day, because their programs died without ending them.
-- KEYS   sessions
-- ARGV   clock, cursor
-- RETURN {cursor, how many}: '0' when the walk is over
--@include time
--@include session_entry
local now = read_time()
local page = redis.call('HSCAN', sessions, cursor, 'COUNT', 1000)
local old = {}
for at = 1, #page[2], 2 do
  local _, called_at = read_session_entry(page[2][at + 1])
  -- Garbage does not say when the session called.
  if (called_at or 0) < now - 86400000 then old[#old + 1] = page[2][at] end
end
for first = 1, #old, 4000 do
  redis.call('HDEL', sessions, unpack(old, first, math.min(first + 3999, #old)))
end
return {page[1], #old}
