-- order: the line of a queue, where jobs wait for their turn. This is the order `due`: `waiting` alone is the line, and
-- what is due stands in it at its due time. order_priority.lua and order_fair.lua have the same functions.
-- KEYS   waiting
--@include waiting
--@include score_apart
--@include rate

-- `claim`: what is known of the run, nil for a new one; `record`: the job's, if the caller has read it.
local function enter_line(id, not_before, claim, record)
  if claim and claim.recoveries > 1 and not_before <= now then return enter_apart(id, claim.due, 0) end
  -- As `enter`, without the call: each run of a schedule comes by here.
  local list = writes.entering[waiting]
  if not list then
    list = {}
    writes.entering[waiting] = list
  end
  local n = #list
  list[n + 1], list[n + 2] = not_before, id
end

-- A run is not worked on any more; `raw` is its claim.
local function freed(raw) end

-- When the first in line may start; -1 if there is none. Suspects do not count: the workers that may try one know of
-- them.
local function head() return paced(tonumber(first_waiting() or -1)) end

-- Write all that was collected, and what the order keeps.
local write_all = apply
