-- run_advance: let jobs go on whose last run ended before anybody could tell when they are due next (run_park).
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
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, next dues (0 for none), passed; passed: the
--        ticks that the job passes, as in run_finish
-- RETURN {1, lost, head, carry} as run_finish
-- USES   call, records, claims, moves, line, endings, widest, settle
if answered then return answered end
local ids, tokens, nexts, passes = unpack(cmsgpack.unpack(items))
local raws = claims_of(ids)
local lost, told = {}, {}

local function advance(id, claim, next_due, passed)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  local verdict, put = obeyed(id, claim, record, next_due, true)
  if verdict ~= 'removed' and verdict ~= 'put' then
    for at = 1, #passed, 17 do
      local first, to, why = struct.unpack('>I8I8B', passed, at)
      skip(id, first, to, why)
    end
  end
  if verdict then return end
  if next_due == 0 then return end_job(id, 0) end
  drop(claims, id)
  drop(errors, id)
  set(jobs, id, put)
  enter_line(id, next_due, nil, put)
end

for i, id in ipairs(ids) do
  local claim = held_by(raws[i], tokens[i], owner)
  if claim then
    told[#told + 1] = id
    stop(id, raws[i])
    advance(id, claim, nexts[i], passes[i])
  else
    lost[#lost + 1] = id
  end
end
if #told == 0 then return nothing_held(lost) end
apply()
return commit({1, lost, head(), to_carry}, 'advance', told)
