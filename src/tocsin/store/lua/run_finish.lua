-- run_finish: end runs. Recurring jobs wait for their next due time, one-shots are done.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> since ms
--        parked    ZSET    id -> since ms
--        dead      ZSET    id -> since ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, items: msgpack [id, token, next due (0: the job ends), outcome, keep,
--        result, error] * n; outcome 0 failed, 1 succeeded, 2 skipped, 3 cancelled; keep: seconds
-- RETURN {1, lost, head}: the ids whose claim was lost (nothing changed for them); head: the first in line, or -1
-- USES   call, records, claims, moves, settle
if answered then return answered end
local COUNTERS = {[FAILED] = 'failed', [SUCCEEDED] = 'succeeded', [SKIPPED] = 'skipped', [CANCELLED] = 'cancelled'}
local flat = cmsgpack.unpack(items)
local ids, raws = ids_and_claims(flat, 7)
local lost, told, tally = {}, {}, {[0] = 0, 0, 0, 0}

local function count(record, outcome)
  return counted(record, outcome == SUCCEEDED and 1 or 0, outcome == FAILED and 1 or 0, outcome == SKIPPED and 0 or 1)
end

-- Records as this call leaves them: a job and its extra runs may end in one batch.
local latest = {}
local function record_of(id) return latest[id] or redis.call('HGET', jobs, id) end
local function keep_record(id, record)
  latest[id] = record
  set(jobs, id, record)
end

local function finish(id, claim, at)
  local next_due, outcome, keep, result, err = flat[at + 3], flat[at + 4], flat[at + 5], flat[at + 6], flat[at + 7]
  leave(working, id)
  local record
  if next_due > 0 then
    record = record_of(id)
    if record then record = count(record, outcome) else next_due = 0 end
  else
    local parent = parent_of(id)
    local of = parent and record_of(parent)
    if of then keep_record(parent, count(of, outcome)) end
  end
  if claim.intent > 0 then
    local verdict, put = obeyed(id, claim, record, next_due, true)
    if verdict then return end
    record = put
  end
  if next_due == 0 then return end_job(id, keep, outcome, result) end
  keep_record(id, record)
  drop(claims, id)
  enter(waiting, next_due, id)
  if err ~= '' then set(errors, id, err) end
end

for i, id in ipairs(ids) do
  local at = (i - 1) * 7
  local claim = held_by(raws[i], flat[at + 2], owner)
  if claim then
    finish(id, claim, at)
    local outcome = flat[at + 4]
    tally[outcome] = tally[outcome] + 1
    told[#told + 1] = id
    told[#told + 1] = claim.due
    told[#told + 1] = claim.attempt
    told[#told + 1] = outcome
  else
    lost[#lost + 1] = id
  end
end
apply()
forget()
for outcome, n in pairs(tally) do
  if n > 0 then redis.call('HINCRBY', meta, COUNTERS[outcome], n) end
end
return commit({1, lost, head()}, 'finish', told)
