-- uncounted: as uncounted_due.lua. In ordered queues each success is counted at once, because what stands below a
-- millisecond there is the place in line.
local function uncounted_in(raw) return 0 end
local function uncounted_with_one_more(raw) end
