-- dependencies: notify the watchers of a job of its end, through the outbox, which any worker carries to them.
-- Apart from settle.lua, because job_delete ends no run.
--@include outcome
--@include outbox

local function has_watchers()
  if call.has_watchers == nil then call.has_watchers = redis.call('EXISTS', watchers) == 1 end
  return call.has_watchers
end

-- Whether others wait for this job. While an end waits to be carried no watcher is added, so all watchers wait for that
-- one.
local function notify_watchers(id, outcome)
  if not has_watchers() or not first_with(watchers, id) then return false end
  call.carry = 1
  if not pending_end(id) then enter(outbox, 0, end_entry(id, outcome)) end
  return true
end
