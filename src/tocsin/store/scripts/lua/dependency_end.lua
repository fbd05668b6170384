-- dependency_end: remove watchers that were notified. An upstream without watchers leaves the outbox.
-- KEYS   meta, sessions, watchers, outbox, events
-- ARGV   epoch, clock, session, seq, items: msgpack [[entry of the outbox, upstream, watcher…]] * n
-- RETURN {1, left}: how many of the entries have watchers left
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
local left, changed_ids = 0, {}

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
  changed_ids[#changed_ids + 1] = item[2]
end
apply()
return commit(call, {1, left}, 'end', changed_ids)
