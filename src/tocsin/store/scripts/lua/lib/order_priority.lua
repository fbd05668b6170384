-- order: as order_due.lua, in priority bands; within a band by due time, then first come, first served.
-- KEYS   waiting, jobs, ready0, ready1, ready2, ready3, ready4
--@include ordered_places
--@include score_ready
--@include ready_count
local function enter_ready(id, due, place, record)
  enter(READY[band_and_tenant(id, record)], ready_score(due, place or next_place()), id)
end

local function freed(raw) end

local function head() return paced(ready_count() > 0 and now or waiting_head()) end

local function write_all(first)
  remember_places()
  apply(first)
end
--@include ordered_line
