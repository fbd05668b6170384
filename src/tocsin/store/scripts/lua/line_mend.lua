-- line_mend: set right what line_look found: places in `ready` that no spot knows, and tenants who are passed over. What
--        stands there is read here, whatever a look has seen before; what is in order is left alone.
-- KEYS   meta      HASH    epoch, seq, fence, counters, limits
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        dead      ZSET    id -> since ms
--        blocked   ZSET    id -> not before ms
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, places, names: as for line_look, at most 1000 of either
-- RETURN {1, places, names}: a digit for each: 0 left alone, 1 mended
-- USES   call, records, claims, moves, line, shares
if answered then return answered end
local flat, named = cmsgpack.unpack(places), cmsgpack.unpack(names)
local mended_places, mended_names, told, any = {}, {}, {}, false

local function stands_somewhere(id)
  for _, stage in ipairs({waiting, working, paused, parked, dead, blocked}) do
    if redis.call('ZSCORE', stage, id) then return true end
  end
  return false
end

-- A job that stands nowhere else keeps its place and is given its spot; any other place is one too many.
local given = {}
local function mend_place(band, member)
  if not redis.call('ZSCORE', READY[band], member) then return false end
  local tenant, due, place, id = parts_of(member)
  local spot = id and (given[id] or redis.call('HGET', spots, id))
  if id and spot == spot_at(band, tenant, due, place) then return false end
  if id and not spot and redis.call('HEXISTS', jobs, id) == 1 and not stands_somewhere(id) then
    given[id] = spot_at(band, tenant, due, place)
    set(spots, id, given[id])
    join(band, tenant)
  else
    leave(READY[band], member)
  end
  told[#told + 1] = id
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
  local state, runs, till = states[name], counted and (counted[name] or 0), rests_until(name)
  local changed = runs and state.active ~= runs
  if changed then
    state.active, touched[name] = runs, state
  end
  if rests_in_vain(till, runs, cap) then
    let_join(name)
    awake[name] = true
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
if not any then return unchanged(reply) end
apply()
return commit(reply, 'mend', told)
