-- line: where jobs wait for their turn. In a queue of order `due` that is `waiting` alone. Queues of another order have
-- line_priority.lua or line_fair.lua here, with the same functions.

-- Where a job stands in line; nil if it does not. `due` is its not-before, where no claim knows better.
local function spot_of(id)
  local score = redis.call('ZSCORE', waiting, id)
  if score then return {due = tonumber(score), score = score, place = 0} end
end

local function ready_spot(id) end
local function leave_ready(id) end

local function leave_line(id) leave(waiting, id) end

-- `claim`: what is known of the run, if anything is; `record`: if the caller has read it.
local function enter_line(id, not_before, claim, record)
  -- Each run of a schedule comes here: without a call of another function.
  local list = into[waiting]
  if not list then
    list = {}
    into[waiting] = list
  end
  local n = #list
  list[n + 1], list[n + 2] = not_before, id
end

-- A run is worked on no longer. `raw` is its claim as it stands.
local function freed(raw) end

local function stand_up(most) return 0 end

-- When the first in line may start; -1 if there is none.
local function head()
  local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
  return paced(first[2] and tonumber(first[2]) or -1)
end
