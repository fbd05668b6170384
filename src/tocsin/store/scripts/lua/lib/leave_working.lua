-- leave_working: take a run out of `working`, and free the slot of its tenant. `raw` is its claim, if there is one.
local function leave_working(id, raw)
  leave(working, id)
  if raw then freed(raw) end
end
