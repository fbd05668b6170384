-- run_retry: an attempt failed and another will follow, not before its backoff.
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
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, delays in ms, errors, notes; note: what is told of the
--        attempt in the event, '' for nothing
-- RETURN {1, lost, head, carry} as run_finish
-- USES   call, records, claims, moves, line, endings, widest, settle
if answered then return answered end
local ids, tokens, delays, failures, told_of = unpack(cmsgpack.unpack(items))
local raws = claims_of(ids)
local lost, told, ends, owed = {}, {}, {}, {}

local function retry(id, raw, claim, delay, err)
  stop(id, raw)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  record = counted(record, 0, 0, 1)
  owe(owed, id, 0)
  claim.attempt = claim.attempt + 1
  -- A cancelled run of a recurring job comes back at once: the worker that gets it plans the next one.
  local not_before = has(claim.intent, CANCEL) and now or now + delay
  local verdict, put = obeyed(id, claim, record, 0, false, not_before)
  if verdict then return end
  if has(claim.intent, CANCEL) and not is_recurring(record) then
    give_up(id, claim, false)
    return cancel_job(id, record, '')
  end
  set(jobs, id, put)
  set(errors, id, err)
  go_back(id, claim, not_before, put)
end

for i, id in ipairs(ids) do
  local claim = held_by(raws[i], tokens[i], owner)
  if claim then
    told[#told + 1] = id
    ends[#ends + 1] = struct.pack('>I8I4B', claim.due, claim.attempt, FAILED)
    note(id, told_of[i])
    retry(id, raws[i], claim, delays[i], failures[i])
  else
    lost[#lost + 1] = id
  end
end
if #told == 0 then return nothing_held(lost) end
apply()
pay(owed)
count_up('retried', #ids - #lost)
return commit({1, lost, head_or_apart(), to_carry}, 'retry', told, ends)
