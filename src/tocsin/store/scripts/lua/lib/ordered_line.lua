-- ordered_line: enter the line of an ordered queue. What is not due yet waits.
--@include apart
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
