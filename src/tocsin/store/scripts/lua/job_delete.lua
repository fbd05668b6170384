-- job_delete: remove jobs. One that is working is removed when its run ends.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        dead      ZSET    id -> since ms
--        errors    HASH    id -> last failure
--        blocked   ZSET    id -> not before ms
--        needs     HASH    id -> what it waits for
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, only, items: msgpack [id] * n; only: '' or the stage it must be in,
--        `waiting` for those in line
-- RETURN {1, codes, carry}: a digit per id: 0 no such job, 1 removed, 2 will be removed when its run ends; carry as
--        in run_finish
-- USES   call, records, claims, moves, line, endings
if answered then return answered end
local ids = cmsgpack.unpack(items)
local codes, gone = {}, {}
local aside = {paused = paused, parked = parked, dead = dead, blocked = blocked}

local function forget_job(id)
  drop(jobs, id)
  drop(claims, id)
  drop(errors, id)
  tell_watchers(id, CANCELLED)
  return '1'
end

local function remove(id)
  local spot = (only == '' or only == 'waiting') and spot_of(id)
  if spot then
    leave_line(id, spot)
    return forget_job(id)
  end
  for name, stage in pairs(aside) do
    if (only == '' or only == name) and redis.call('ZSCORE', stage, id) then
      leave(stage, id)
      if stage == blocked then drop(needs, id) end
      return forget_job(id)
    end
  end
  if only ~= '' or not redis.call('ZSCORE', working, id) then return '0' end
  local claim = claim_at_work(redis.call('HGET', claims, id))
  if has(claim.intent, REMOVE) then return '0' end
  claim.intent = with(without(without(claim.intent, PUT), PAUSE), REMOVE)
  claim.put_due, claim.put_first, claim.put_record = nil, nil, nil
  set(claims, id, write_claim(claim))
  return '2'
end

for i, id in ipairs(ids) do
  codes[i] = remove(id)
  if codes[i] ~= '0' then gone[#gone + 1] = id end
end
local reply = {1, table.concat(codes), to_carry}
if #gone == 0 then return unchanged(reply) end
apply()
return commit(reply, 'delete', gone)
