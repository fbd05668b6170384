-- ready_member: a member of `ready` in a queue of order `fair`: tenant NUL due (13 digits) NUL place (4 digits) NUL id,
-- all with score 0, so that the jobs of a tenant stand together, in their order. `spots` has id -> band and all of that
-- but the id. ready_member_parts.lua and spot_entry.lua take them apart.
local function ready_prefix(tenant, due, place)
  return tenant .. '\0' .. string.format('%013.0f', due) .. '\0' .. string.format('%04d', place)
end

-- Up to `most` of a tenant's members, behind the member `after` if it is given.
local function members_of_tenant(ready, tenant, after, most)
  local from = after and '(' .. after or '[' .. tenant .. '\0'
  return redis.call('ZRANGEBYLEX', ready, from, '(' .. tenant .. '\1', 'LIMIT', 0, most)
end
