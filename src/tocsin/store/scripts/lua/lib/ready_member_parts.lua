-- ready_member_parts: take members of `ready` apart. The layout is in ready_member.lua.

-- Tenant, due, place, id, as text; nothing for what Tocsin did not write.
local function parts_of_member(member)
  return string.match(member, '^([^%z]*)%z(%d%d%d%d%d%d%d%d%d%d%d%d%d)%z(%d+)%z(.+)$')
end

-- The entry of `spots` that belongs to it.
local function spot_text(band, tenant, due, place) return band .. tenant .. '\0' .. due .. '\0' .. place end
