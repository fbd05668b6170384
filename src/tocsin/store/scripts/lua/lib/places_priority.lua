-- places_priority: as places.lua. The score in `ready` is the place.
local LEFTOVERS = {}
for _, band in ipairs({ready0, ready1, ready2, ready3, ready4}) do ZSETS[#ZSETS + 1] = band end
local function give_place(id, values) end
local function take_place(id) end
