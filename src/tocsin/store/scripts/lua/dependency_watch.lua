-- dependency_watch: register watchers of jobs of this partition, or say how the jobs have ended.
-- KEYS   meta, sessions, jobs, dead, results, watchers, outbox, events
-- ARGV   epoch, clock, session, seq, items: msgpack [upstream, watcher: queue NUL dependent NUL life] * n, at most 1000
-- RETURN {1, codes}: a letter per item: w it watches now, l not yet (an earlier end is still to be carried), r refused,
--        the upstream recurs and never ends, g it does not exist; 0 to 3 its outcome, it has ended (0: also if dead)
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include watching
local flat = cmsgpack.unpack(items)

local known, codes, watched = {}, {}, {}
for at = 1, #flat, 2 do
  local upstream = flat[at]
  known[upstream] = known[upstream] or chance_to_watch(upstream)
  codes[#codes + 1] = known[upstream]
  if known[upstream] == 'w' then
    enter(watchers, 0, upstream .. '\0' .. flat[at + 1])
    watched[#watched + 1] = upstream
  end
end
local reply = {1, table.concat(codes)}
if #watched == 0 then return unchanged(call, reply) end
apply()
return commit(call, reply, 'watch', watched)
