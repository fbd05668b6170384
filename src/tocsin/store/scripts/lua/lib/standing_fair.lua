-- standing_fair: as standing.lua.
local function is_ready(id) return redis.call('HEXISTS', spots, id) == 1 end

-- Its spot names a place that is there.
local function is_misplaced(id)
  local at = redis.call('HGET', spots, id)
  if not at then return false end
  local key = ({ready0, ready1, ready2, ready3, ready4})[(tonumber(string.sub(at, 1, 1)) or 9) + 1]
  return not (key and redis.call('ZSCORE', key, string.sub(at, 2) .. '\0' .. id))
end
