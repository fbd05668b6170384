-- run_bury: one-shot runs are out of retries, or were recovered too often: they are dead, with their error.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        dead      ZSET    id -> since ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, errors, notes as in run_retry
-- RETURN {1, lost, head, carry} as run_finish
-- USES   call, records, claims, moves, line, endings, widest, settle
if answered then return answered end
local ids, tokens, failures, told_of = unpack(cmsgpack.unpack(items))
local raws = claims_of(ids)
local lost, told, ends, owed = {}, {}, {}, {}

local function bury(id, raw, claim, err)
  stop(id, raw)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  record = caught_up(counted(record, 0, 1, 1), claim)
  owe(owed, id, 1)
  local verdict, put = obeyed(id, claim, record, 0, true)
  if verdict then return end
  if has(claim.intent, CANCEL) then return cancel_job(id, record, '') end
  set(jobs, id, put)
  set(errors, id, err)
  set(claims, id, write_claim(let_go(claim)))
  enter(dead, now, id)
  tell_watchers(id, FAILED)
end

for i, id in ipairs(ids) do
  local claim = held_by(raws[i], tokens[i], owner)
  if claim then
    told[#told + 1] = id
    ends[#ends + 1] = struct.pack('>I8I4B', claim.due, claim.attempt, FAILED)
    note(id, told_of[i])
    bury(id, raws[i], claim, failures[i])
  else
    lost[#lost + 1] = id
  end
end
if #told == 0 then return nothing_held(lost) end
apply()
pay(owed)
count_up('buried', #ids - #lost)
return commit({1, lost, head(), to_carry}, 'bury', told, ends)
