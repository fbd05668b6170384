-- settings_mend: drop numbers of a partition that are garbage: a counter begins anew, and an unreadable limit is none.
--        An unreadable order or number of partitions is replaced by that of the register.
-- KEYS   meta
-- ARGV   clock, order, partitions, names, orders, mends: as registered; msgpack [field] * n, fields that are numbers;
--        msgpack [order] * n, all orders that exist; '1' to mend, '' to look only
-- RETURN [field]…: fields that are garbage, and were mended if asked for
--@include time
local now = read_time()
local wrong = {}
local function found(field, better)
  wrong[#wrong + 1] = field
  if mends ~= '1' then return end
  -- The removal comes first, so that it passes on a full server.
  redis.call('HDEL', meta, field)
  if better then redis.call('HSET', meta, field, better) end
end

local function is_number(text)
  local number = tonumber(text)
  return number and number >= 0 and number < 9007199254740992
end

for _, field in ipairs(cmsgpack.unpack(names)) do
  if not is_number(redis.call('HGET', meta, field) or 0) then found(field) end
end
-- Versions of records go on from a number that none has reached.
if not is_number(redis.call('HGET', meta, 'seq') or 0) then found('seq', string.format('%.0f', now)) end
if redis.call('HEXISTS', meta, 'epoch') == 1 then
  local known = {}
  for _, name in ipairs(cmsgpack.unpack(orders)) do known[name] = true end
  local stored = redis.call('HMGET', meta, 'order', 'partitions')
  if not known[stored[1]] then found('order', order) end
  if not string.find(stored[2] or '', '^%d+$') then found('partitions', partitions) end
end
return wrong
