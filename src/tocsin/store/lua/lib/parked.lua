-- parked: which of those set aside this worker can take.
-- What is parked is found by its handler; what could not be read is tried again when its time has come. Who looks at one
-- of these takes it or moves it (look_again in take.lua), so that they hide no others.
local function parked_for_us(most)
  local aside = redis.call('ZRANGEBYSCORE', parked, 4294967296, now, 'LIMIT', 0, 50)
  if not known then
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', parked, '-inf', '(4294967296', 'LIMIT', 0, most)) do
      aside[#aside + 1] = id
    end
    return aside
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', parked, '-inf', 0, 'LIMIT', 0, 50)) do aside[#aside + 1] = id end
  for at = 1, #handlers, 4 do
    local digest = struct.unpack('>I4', handlers, at)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', parked, digest, digest, 'LIMIT', 0, most)) do
      aside[#aside + 1] = id
    end
    if #aside >= most + 100 then break end
  end
  return aside
end
