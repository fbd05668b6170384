-- watch_end: watchers of jobs that ended were told: they watch no more, and when none is left the end is carried.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, items: msgpack [[entry of the outbox, upstream, watcher…]] * n
-- RETURN {1, left}: how many of the entries have watchers left
-- USES   call, moves
if answered then return answered end
local left, told = 0, {}

local function is_last(upstream, gone)
  local some = redis.call('ZRANGEBYLEX', watchers, '[' .. upstream .. '\0', '(' .. upstream .. '\1', 'LIMIT', 0,
    gone.count + 1)
  for _, watcher in ipairs(some) do
    if not gone[watcher] then return false end
  end
  return true
end

for _, item in ipairs(cmsgpack.unpack(items)) do
  local gone = {count = #item - 2}
  for at = 3, #item do
    leave(watchers, item[at])
    gone[item[at]] = true
  end
  if is_last(item[2], gone) then leave(outbox, item[1]) else left = left + 1 end
  told[#told + 1] = item[2]
end
apply()
return commit({1, left}, 'end', told)
