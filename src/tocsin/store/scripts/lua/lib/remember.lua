-- remember: store how a job ended, for `keep` seconds.
--@include outcome
local function remember(id, keep, outcome, result, is_unnamed_job)
  enter(done, now + keep * 1000, id)
  set(results, id, struct.pack('>BI8', outcome, now) .. result)
  if is_unnamed_job then enter(unnamed, now, id) end
end
