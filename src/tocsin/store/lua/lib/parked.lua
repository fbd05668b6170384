-- parked: which of those set aside this worker can take.
-- What is parked is found by its handler; what nobody could read is tried again by those who may.
local function parked_for_us(most)
  if not known then return redis.call('ZRANGE', parked, 0, most - 1) end
  local aside = redis.call('ZRANGEBYSCORE', parked, 0, 0, 'LIMIT', 0, 50)
  for at = 1, #handlers, 4 do
    local digest = struct.unpack('>I4', handlers, at)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', parked, digest, digest, 'LIMIT', 0, most)) do
      aside[#aside + 1] = id
    end
    if #aside >= most + 50 then break end
  end
  return aside
end
