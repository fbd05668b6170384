-- job_delete: remove jobs. One that is working is removed when its run ends.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, errors, blocked, needs, watchers,
--        outbox, events
-- ARGV   epoch, clock, session, seq, only, items: msgpack [id] * n; only: '' or the stage it must be in,
--        `waiting` for those in line
-- RETURN {1, codes, carry}: a digit per id: 0 no such job, 1 removed, 2 will be removed when its run ends; carry as
--        in run_finish
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include line_entry
--@include claim_intents
--@include dependencies
local ids = cmsgpack.unpack(items)
local codes, gone = {}, {}
local aside = {paused = paused, parked = parked, dead = dead, blocked = blocked}

local function forget_job(id)
  drop(jobs, id)
  drop(claims, id)
  drop(errors, id)
  notify_watchers(id, CANCELLED)
  return '1'
end

local function remove(id)
  local entry = (only == '' or only == 'waiting') and line_entry_of(id)
  if entry then
    leave_line(id, entry)
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
  local claim = claim_at_work(redis.call('HGET', claims, id), now)
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
local reply = {1, table.concat(codes), call.carry}
if #gone == 0 then return unchanged(call, reply) end
write_all()
return commit(call, reply, 'delete', gone)
