-- job_watch: let dependents be told when jobs of this partition end, or say how they have ended.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        dead      ZSET    id -> since ms
--        results   HASH    id -> outcome
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, items: msgpack [upstream, watcher: queue NUL dependent NUL life] * n, at most 1000
-- RETURN {1, codes}: a letter per item: w it watches now, l not yet (an earlier end is still to be carried),
--        r refused, it recurs and never ends, g nobody knows it; 0 to 3 its outcome, it has ended (0: also if dead)
-- USES   call, records, moves, endings
if answered then return answered end
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
if #watched == 0 then return unchanged(reply) end
apply()
return commit(reply, 'watch', watched)
