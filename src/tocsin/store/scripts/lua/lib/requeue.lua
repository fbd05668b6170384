-- requeue: take a run out of `working`, and put it back in line if it has not ended.
-- Apart from settle.lua, because run_finish does neither.
--@include claim_intents

-- Free the slot of its tenant, too. `raw` is its claim, if there is one.
local function leave_working(id, raw)
  leave(working, id)
  if raw then freed(raw) end
end

-- Its claim stays if it says more than a score does.
-- `record`: the job's as this call leaves it, if it changes it.
local function requeue(id, claim, not_before, record)
  release_claim(claim)
  enter_line(id, not_before, claim, record)
  if is_default_claim(claim) and not_before == claim.due then
    drop(claims, id)
  else
    set(claims, id, write_claim(claim))
  end
end

-- When the first in line may start, or a suspect that this call brought back, so that idle workers get to know.
local function head_or_apart() return call.stands_apart and paced(now) or head() end
