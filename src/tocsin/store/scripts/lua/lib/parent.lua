-- parent: extra runs of a job have ids of their own: the job's id, a unit separator, the due time. The run that
-- replaces others has 0 in place of the due time (run_plan).
local function parent_of(id)
  local at = string.find(id, '\31', 1, true)
  return at and string.sub(id, 1, at - 1)
end
