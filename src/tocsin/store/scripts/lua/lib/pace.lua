-- pace: when a queue's rate lets the next run start. It is spent as in the generic cell rate algorithm: a run takes
-- `every` ms of it, `spent` is the time up to which it is used, `burst` how many ms that may be ahead of now.

-- More than this rate can have spent: it was a slower one, or the clock went back. It begins anew.
local function spent_by(every, burst, spent)
  spent = math.max(spent, now)
  return spent > now + burst + every and now or spent
end

-- Every, burst and spent; nil for none.
local function rate()
  local every, burst = tonumber(about[5]), tonumber(about[6]) or 0
  return every, burst, every and spent_by(every, burst, tonumber(about[7]) or 0)
end

-- `at`, or when the rate lets one start if that is later; -1 stays what it is.
local function paced(at)
  local every, burst, spent = rate()
  if at < 0 or not every then return at end
  return spent - burst > now and math.max(at, math.ceil(spent - burst)) or at
end
