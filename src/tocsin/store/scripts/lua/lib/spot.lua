-- spot: read an entry of `spots`, which says where in `ready` a job is. The layout is in tenant.lua.

-- Band, tenant, due, place of an entry of `spots`. What somebody else wrote there says: the middle band, now.
local function read_spot(text, now)
  local band, tenant, due, place = string.match(text, '^([0-4])(.*)%z(%d+)%z(%d+)$')
  if not band then return 2, '', now, 0 end
  return tonumber(band), tenant, tonumber(due), tonumber(place)
end

local function member_of_spot(text, id) return string.sub(text, 2) .. '\0' .. id end
