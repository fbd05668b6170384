-- audit_look_line: find what is out of order in the line of a fair queue, all at one instant. Changes nothing.
-- ORDERS fair
-- KEYS   meta, working, claims, ready0, ready1, ready2, ready3, ready4, turns0, turns1, turns2, turns3, turns4,
--        tenants, spots, resting
-- ARGV   places, names
--        places: msgpack [band, member of its `ready`] * n; names: msgpack [tenant] * n; at most 1000 of either
-- RETURN {places, names}: a digit per place: 0 in order or gone, 1 `spots` says otherwise; a digit per tenant, the sum
--        of: 1 has work in a band, and neither a turn there nor a rest, 2 has another number of runs than its claims
--        say, 4 rests until one of its runs ends, although it need not
--@include record
--@include tenant_audit
--@include tenant

local function look_at_place(band, member)
  if not redis.call('ZSCORE', READY[band], member) then return '0' end
  local tenant, due, place, id = parts_of_member(member)
  if id and redis.call('HGET', spots, id) == spot_text(band, tenant, due, place) then return '0' end
  return '1'
end

local function is_passed_over(name)
  for band = 0, 4 do
    if has_work(name, READY[band]) and not redis.call('ZSCORE', TURNS[band], name) then return true end
  end
  return false
end

local function look_at_tenant(name, counted, cap)
  local state, seen = read_state(redis.call('HGET', tenants, name)), 0
  local till = redis.call('ZSCORE', resting, name)
  local runs = counted and (counted[name] or 0)
  if not till and is_passed_over(name) then seen = seen + 1 end
  if runs and state.active ~= runs then seen = seen + 2 end
  if rests_in_vain(till, runs, cap) then seen = seen + 4 end
  return seen
end

local flat, named = cmsgpack.unpack(places), cmsgpack.unpack(names)
local seen_places, seen_names = {}, {}
for at = 1, #flat, 2 do seen_places[#seen_places + 1] = look_at_place(flat[at], flat[at + 1]) end
local counted = #named > 0 and runs_by_tenant() or nil
local cap = tonumber(redis.call('HGET', meta, 'tenant_max_active'))
for i, name in ipairs(named) do seen_names[i] = look_at_tenant(name, counted, cap) end
return {table.concat(seen_places), table.concat(seen_names)}
