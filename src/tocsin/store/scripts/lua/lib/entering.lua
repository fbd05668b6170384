-- entering: how the lines of ordered queues are entered, and where a job stands in one. What is not due yet waits.
local function spot_of(id)
  local spot = ready_spot(id)
  if spot then return spot end
  local score = redis.call('ZSCORE', waiting, id)
  if not score then return nil end
  local apart = is_apart(tonumber(score))
  if apart then score = string.format('%.0f', due_apart(tonumber(score))) end
  return {due = tonumber(score), score = score, place = 0, apart = apart}
end

local function enter_line(id, not_before, claim, record)
  not_before = tonumber(not_before)
  if not_before > now then
    enter(waiting, string.format('%.0f', not_before), id)
  elseif claim and claim.recoveries > 1 then
    stand_apart(id, claim.due, record)
  else
    enter_ready(id, claim and claim.due or not_before, claim and claim.place, record)
  end
end

-- Here each success is counted at once: what is below the millisecond is the place in line.
local function uncounted_in(raw) return 0 end
local function uncounted_with_one_more(raw) end
local function caught_up(record, from) return record end
