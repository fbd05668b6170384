-- queue_update: change settings of a queue, live. What an operator has set, code does not change.
-- KEYS   meta      HASH    epoch, seq, fence, counters, settings
--        sessions  HASH    session -> seq, time, answer
--        weights   HASH    tenant -> weight
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, operator, items, shares
--        operator: '1', or '' for what code declares; items: msgpack [field, its setting, value ('' for none)] * n;
--        shares: msgpack [tenant, weight ('' for 1)] * n
-- RETURN {1, more}: more is 1 if tenants are left who should be asked to try their new limits
-- USES   call, records, claims, moves, line
if answered then return answered end
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

local stood_up = stand_up(1000)
if not changed and stood_up == 0 then return unchanged({1, 0}) end
apply()
return commit({1, stood_up == 1000 and 1 or 0}, 'update_queue', {})
