-- run_park: set aside runs whose record this worker could not read. Others try after a while, longer each time; a person
-- may unpark them sooner.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns as in run_bury
-- RETURN {1, lost, head, carry} as run_finish
-- USES   call, records, claims, moves, line, endings, settle
if answered then return answered end
local ids, tokens, failures, told_of = unpack(cmsgpack.unpack(items))
local raws = claims_of(ids)
local lost, told = {}, {}
for i, id in ipairs(ids) do
  local claim = held_by(raws[i], tokens[i], owner)
  if claim then
    stop(id, raws[i])
    local verdict, put = obeyed(id, claim, nil, 0, false)
    if not verdict then
      if put then
        -- Edited meanwhile: what could not be read is there no more.
        set(jobs, id, put)
        go_back(id, claim, claim.due, put)
      else
        let_go(claim)
        local times = unread_times(claim.intent) + 1
        claim.intent = with_unread_times(claim.intent, times)
        set(claims, id, write_claim(claim))
        set(errors, id, failures[i])
        enter(parked, read_again_at(times), id)
      end
    end
    note(id, told_of[i])
    told[#told + 1] = id
  else
    lost[#lost + 1] = id
  end
end
apply()
return commit({1, lost, head(), to_carry}, 'park', told)
