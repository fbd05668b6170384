-- session_prune: forget sessions that have not called for a day: programs that died without saying so.
-- KEYS   sessions  HASH    session -> seq, time, answer
-- ARGV   clock, cursor
-- RETURN {cursor, how many}: '0' when the walk is over
local now = tonumber(clock)
if clock == '' then now = redis.call('TIME')[1] * 1000 end
local page = redis.call('HSCAN', sessions, cursor, 'COUNT', 1000)
local old = {}
for at = 1, #page[2], 2 do
  local entry = page[2][at + 1]
  -- One that is too short to say when it called is garbage.
  local last = #entry > 16 and select(2, struct.unpack('>I8I8', entry)) or 0
  if last < now - 86400000 then old[#old + 1] = page[2][at] end
end
for first = 1, #old, 4000 do
  redis.call('HDEL', sessions, unpack(old, first, math.min(first + 3999, #old)))
end
return {page[1], #old}
