-- need_renew: ask anew for what blocked jobs wait for, as if they had just been put. For waits of which nobody knows.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        blocked   ZSET    id -> not before ms
--        needs     HASH    id -> what it waits for
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, items: msgpack [id] * n
-- RETURN {1, codes}: a digit per id: 0 left alone, 1 asked anew
-- USES   call, moves
if answered then return answered end
local codes, renewed = {}, {}

local function renew(id)
  local raw = redis.call('ZSCORE', blocked, id) and redis.call('HGET', needs, id)
  local fine, wait = pcall(cmsgpack.unpack, raw or '')
  if not raw or not fine or type(wait) ~= 'table' then return false end
  for at = 3, #wait do enter(outbox, 0, 'W\0' .. id .. '\0' .. wait[1] .. '\0' .. wait[at]) end
  return #wait > 2
end

for i, id in ipairs(cmsgpack.unpack(items)) do
  codes[i] = '0'
  if renew(id) then
    codes[i] = '1'
    renewed[#renewed + 1] = id
  end
end
local reply = {1, table.concat(codes)}
if #renewed == 0 then return unchanged(reply) end
apply()
return commit(reply, 'renew', renewed)
