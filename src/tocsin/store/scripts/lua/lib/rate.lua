-- rate: work out when a queue's rate lets the next run start.
-- It is spent as in the generic cell rate algorithm: a run takes `every` ms of it, `spent` is the time up to
-- which it is used, `burst` how many ms that may be ahead of now.

-- A rate cannot have spent more than this. Either it was slower before, or the clock went back: it begins anew.
local function spent_by(every, burst, spent)
  spent = math.max(spent, now)
  return spent > now + burst + every and now or spent
end

-- `at`, or when the rate lets a run start if that is later; -1 stays what it is.
local function paced(at)
  local every, burst = call.every, call.burst
  if at < 0 or not every then return at end
  local spent = spent_by(every, burst, call.spent)
  return spent - burst > now and math.max(at, math.ceil(spent - burst)) or at
end
