-- audit_mend_line: repair what audit_look_line found: members of `ready` that no entry of `spots` names, and tenants
--        that would be passed over. It reads everything anew, whatever a look has seen before.
-- ORDERS fair
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, blocked, events
-- ARGV   epoch, clock, session, seq, places, names: as for audit_look_line, at most 1000 of either
-- RETURN {1, places, names}: a digit for each: 0 left alone, 1 mended
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include tenant_audit
local flat, named = cmsgpack.unpack(places), cmsgpack.unpack(names)
local mended_places, mended_names, changed_ids, any = {}, {}, {}, false

local function stands_somewhere(id)
  for _, stage in ipairs({waiting, working, paused, parked, dead, blocked}) do
    if redis.call('ZSCORE', stage, id) then return true end
  end
  return false
end

-- A job that is nowhere else keeps its place in line and gets its entry; any other member is one too many.
local given = {}
local function mend_place(band, member)
  if not redis.call('ZSCORE', READY[band], member) then return false end
  local tenant, due, place, id = parts_of_member(member)
  local entry = id and (given[id] or redis.call('HGET', spots, id))
  if id and entry == spot_text(band, tenant, due, place) then return false end
  if id and not entry and redis.call('HEXISTS', jobs, id) == 1 and not stands_somewhere(id) then
    given[id] = spot_text(band, tenant, due, place)
    set(spots, id, given[id])
    join(band, tenant)
  else
    leave(READY[band], member)
  end
  changed_ids[#changed_ids + 1] = id
  return true
end

local counted = #named > 0 and runs_by_tenant() or nil
local cap = tonumber(redis.call('HGET', meta, 'tenant_max_active'))

local function give_missing_turns(name)
  local missing = false
  for band = 0, 4 do
    if has_work(name, READY[band]) and not redis.call('ZSCORE', TURNS[band], name) then
      join(band, name)
      missing = true
    end
  end
  return missing
end

local function mend_tenant(name)
  load_states({name})
  local fair = fair_state()
  local state, runs, till = fair.states[name], counted and (counted[name] or 0), rests_until(name)
  local changed = runs and state.active ~= runs
  if changed then
    state.active, fair.touched[name] = runs, state
  end
  if rests_in_vain(till, runs, cap) then
    let_join(name)
    return true
  end
  return not till and give_missing_turns(name) or changed
end

local function digit(mended)
  any = any or mended
  return mended and '1' or '0'
end

for at = 1, #flat, 2 do mended_places[#mended_places + 1] = digit(mend_place(flat[at], flat[at + 1])) end
for i, name in ipairs(named) do mended_names[i] = digit(mend_tenant(name)) end
local reply = {1, table.concat(mended_places), table.concat(mended_names)}
if not any then return unchanged(call, reply) end
write_all()
return commit(call, reply, 'mend', changed_ids)
