-- dependency_renew: watch the upstreams of blocked jobs again, as if the jobs had just been put. For waits that have
--        neither an entry in the outbox nor a watcher.
-- KEYS   meta, sessions, blocked, needs, outbox, events
-- ARGV   epoch, clock, session, seq, items: msgpack [id] * n
-- RETURN {1, codes}: a digit per id: 0 left alone, 1 watched again
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include outbox
local codes, renewed = {}, {}

local function renew(id)
  local raw = redis.call('ZSCORE', blocked, id) and redis.call('HGET', needs, id)
  local fine, wait = pcall(cmsgpack.unpack, raw or '')
  if not raw or not fine or type(wait) ~= 'table' then return false end
  for at = 3, #wait do enter(outbox, 0, wait_entry(id, wait[1], wait[at])) end
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
if #renewed == 0 then return unchanged(call, reply) end
apply()
return commit(call, reply, 'renew', renewed)
