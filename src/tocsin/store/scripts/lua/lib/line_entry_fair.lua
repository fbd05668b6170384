-- line_entry: as line_entry_due.lua. The entry of a ready job also has its member of `ready` and its tenant.
--@include spot
local function ready_entry_of(id)
  local text = redis.call('HGET', spots, id)
  if not text then return nil end
  local band, tenant, due, place = read_spot(text, now)
  return {band = band, due = due, score = string.format('%.0f', due), place = place, tenant = tenant,
    member = member_of_spot(text, id)}
end

-- A tenant that has no more work in the band stays in the turns until its turn comes and nothing is found.
local function leave_line(id, entry)
  if not entry.band then return leave(waiting, id) end
  leave(READY[entry.band], entry.member)
  drop(spots, id)
end

local function leave_ready(id) leave_line(id, ready_entry_of(id)) end
--@include ordered_entry
