-- spot: which job an entry of `spots` or a member of a line names. The layouts are in tenant.lua.

-- Band, tenant, due, place of an entry of `spots`. What somebody else wrote there says: the middle band, now.
local function read_spot(text, now)
  local band, tenant, due, place = string.match(text, '^([0-4])(.*)%z(%d+)%z(%d+)$')
  if not band then return 2, '', now, 0 end
  return tonumber(band), tenant, tonumber(due), tonumber(place)
end

local function member_of_spot(text, id) return string.sub(text, 2) .. '\0' .. id end

-- The id that a member of any `ready`, or of another set of jobs, names: it is the id itself but in fair queues. And
-- the due time that it names there.
local function id_in_line(member) return string.match(member, '^[^%z]*%z%d+%z%d+%z(.*)$') or member end
local function due_in_member(member) return tonumber(string.match(member, '^[^%z]*%z(%d+)%z') or nil) end
