-- run_release: hand runs back unexecuted, at their due time or after a delay. It counts neither as an attempt nor as a
-- recovery.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, delays in ms (0: at its due)
-- RETURN {1, lost, head, carry} as run_finish
-- USES   call, records, claims, moves, line, endings, widest, settle
if answered then return answered end
local ids, tokens, delays = unpack(cmsgpack.unpack(items))
local raws = claims_of(ids)
local lost, told = {}, {}
for i, id in ipairs(ids) do
  local claim, delay = held_by(raws[i], tokens[i], owner), delays[i]
  if claim then
    stop(id, raws[i])
    local not_before = delay > 0 and math.max(claim.due, now + delay) or claim.due
    local verdict, put = obeyed(id, claim, nil, 0, false, not_before)
    if not verdict then
      if put then set(jobs, id, put) end
      go_back(id, claim, not_before, put)
    end
    told[#told + 1] = id
  else
    lost[#lost + 1] = id
  end
end
if #told == 0 then return nothing_held(lost) end
apply()
return commit({1, lost, head_or_apart(), to_carry}, 'release', told)
