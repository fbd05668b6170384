-- presence: as presence.lua.
-- KEYS   spots, ready0, ready1, ready2, ready3, ready4
--@include spot
local function is_ready(id) return redis.call('HEXISTS', spots, id) == 1 end

-- Whether its entry in `spots` names no member of `ready`.
local function is_misplaced(id)
  local text = redis.call('HGET', spots, id)
  if not text then return false end
  local band = read_spot(text, 0)
  return not redis.call('ZSCORE', READY[band], member_of_spot(text, id))
end
