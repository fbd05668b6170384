-- apart: as apart_due.lua, in ordered queues. `enter_ready` is in their orders.
local function stand_apart(id, due, record) enter_apart(id, due, (band_and_tenant(id, record))) end
