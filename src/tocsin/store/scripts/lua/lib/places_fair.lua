-- places_fair: as places.lua. A job in line is in `ready` under the name that its spot tells, and its tenant has a turn;
-- one that is working counts for its tenant.
local LEFTOVERS = {ready0, ready1, ready2, ready3, ready4, turns0, turns1, turns2, turns3, turns4, tenants, resting}
HASHES[#HASHES + 1] = spots
local AT_CLAIM, AT_SPOT = 2, #HASHES

local function is_held(raw) return raw and #raw >= 25 and struct.unpack('>I8', raw) > 0 end
local function band_of_spot(spot) return tonumber(string.sub(spot, 1, 1)) end
local function name_of(id, spot) return string.sub(spot, 2) .. '\0' .. id end

-- A job that is there already has been given its place.
local function give_place(id, values)
  local spot, raw = values[AT_SPOT], values[AT_CLAIM]
  if spot and redis.call('HEXISTS', spots, id) == 0 then
    enter(READY[band_of_spot(spot)], 0, name_of(id, spot))
    join(band_of_spot(spot), string.match(spot, '^%d(.*)%z%d+%z%d+$'))
  end
  local counts_for = is_held(raw) and tenant_of_claim(raw) or ''
  if counts_for ~= '' and redis.call('HGET', claims, id) ~= raw then
    local tenant = string.sub(counts_for, 2)
    load_states({tenant})
    states[tenant].active, touched[tenant] = states[tenant].active + 1, states[tenant]
  end
end

local function take_place(id)
  local spot, raw = redis.call('HGET', spots, id), redis.call('HGET', claims, id)
  if spot then leave(READY[band_of_spot(spot)], name_of(id, spot)) end
  if is_held(raw) then freed(raw) end
end
