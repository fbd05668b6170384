-- ready_member_scan: read members of `ready` in a loop. The layout is in ready_member.lua.

-- The due time, the place and the id of a member of `ready`; nothing if Tocsin did not write it. By position, because
-- patterns are slow.
local function read_member(member, tenant)
  local from = #tenant + 2
  if byte(member, from + 13) ~= 0 or byte(member, from + 18) ~= 0 then return end
  local due, place = tonumber(sub(member, from, from + 12)), tonumber(sub(member, from + 14, from + 17))
  if due and place then return due, place, sub(member, from + 19) end
end

-- The id alone, whether or not Tocsin wrote the member.
local function id_in_member(member, tenant) return sub(member, #tenant + 21) end
