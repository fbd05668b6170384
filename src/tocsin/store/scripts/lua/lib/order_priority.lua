-- order: as order_due.lua, in priority bands; within a band by due time, then first come, first served.
-- KEYS   waiting, jobs, ready0, ready1, ready2, ready3, ready4
--@include ordered
function enter_ready(id, due, place, record)
  enter(READY[band_and_tenant(id, record)], string.format('%.6f', due + (place or next_place()) / PLACES_IN_MS), id)
end

local function freed(raw) end

local function head() return paced(ready_count() > 0 and now or waiting_head()) end

local function write_all(first)
  remember_places()
  apply(first)
end
