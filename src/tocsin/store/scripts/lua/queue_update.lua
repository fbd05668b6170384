-- queue_update: change settings of a queue, live. What an operator has set, code does not change.
-- KEYS   meta, sessions, weights, events
-- ARGV   epoch, clock, session, seq, operator, items, shares
--        operator: '1', or '' for what code declares; items: msgpack [field, its setting, value ('' for none)] * n;
--        shares: msgpack [tenant, weight ('' for 1)] * n
-- RETURN {1, more}: more is 1 if tenants are left who should be asked to try their new limits
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include waking
local flat, new_weights = cmsgpack.unpack(items), cmsgpack.unpack(shares)
local changed = false

local function is_operators(setting) return redis.call('HEXISTS', meta, 'set:' .. setting) == 1 end

local function put_field(hash, field, value)
  if (redis.call('HGET', hash, field) or '') == value then return end
  if value == '' then drop(hash, field) else set(hash, field, value) end
  changed = true
end

-- A cap below what runs is no breach of it as long as nothing was claimed since.
local function put_cap(value)
  if (redis.call('HGET', meta, 'max_active') or '') ~= value then
    set(meta, 'claimed_before_cap', redis.call('HGET', meta, 'claimed') or '0')
  end
end

for at = 1, #flat, 3 do
  local field, setting, value = flat[at], flat[at + 1], flat[at + 2]
  if field == 'max_active' and (operator ~= '' or not is_operators(setting)) then put_cap(value) end
  if operator ~= '' then
    put_field(meta, field, value)
    put_field(meta, 'set:' .. setting, '1')
  elseif not is_operators(setting) then
    put_field(meta, field, value)
  end
end
for at = 1, #new_weights, 2 do put_field(weights, new_weights[at], new_weights[at + 1]) end

local stood_up = wake_resting(1000)
if not changed and stood_up == 0 then return unchanged(call, {1, 0}) end
write_all()
return commit(call, {1, stood_up == 1000 and 1 or 0}, 'update_queue', {})
