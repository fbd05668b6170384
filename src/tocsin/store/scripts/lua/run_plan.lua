-- run_plan: give the occurrence for which a job was claimed a run of its own, and let the job wait for its next one. If
--        the runs of a job replace each other, the last one before is dropped if it waits; if it is working it is
--        cancelled, and the new one is put when it ends.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed,
--        watchers, outbox, events
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, next dues (0 for none), alone 0 or 1,
--        passed; alone: whether runs replace each other; passed: the ticks that the job passes, as in run_finish
-- RETURN {1, lost, head, carry, cancel}: lost, head and carry as run_finish; cancel: [id, owner, token] * n of working
--        runs whose owners have to cancel them
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include counts
--@include order
--@include settle_each
--@include claim_intents
--@include record_edit
--@include extra_run

--@include line_entry
local ids, tokens, nexts, alones, passes = unpack(cmsgpack.unpack(items))
local to_cancel, added = {}, 0

local function add_run(member, due, extra)
  set(jobs, member, extra)
  store_again(extra)
  enter_line(member, due, nil, extra)
  added = added + 1
end

-- Remove the sole run before this one, which has not begun, or has ended badly.
local function push_out(member, claim)
  local entry = line_entry_of(member)
  if entry then
    local was = claim and claim.due or entry.due
    skip(member, was, was + 1, WHY.OVERLAP)
    leave_line(member, entry)
  end
  for _, stage in ipairs({paused, parked, dead}) do
    local score = redis.call('ZSCORE', stage, member)
    if score then
      -- A dead run has had its event already.
      local was = claim and claim.due or tonumber(score)
      if stage ~= dead then skip(member, was, was + 1, WHY.OVERLAP) end
      leave(stage, member)
    end
  end
  drop(claims, member)
  drop(errors, member)
end

local function put_alone(id, due, extra)
  local member = sole_run_id(id)
  local raw = redis.call('HGET', claims, member)
  if not redis.call('ZSCORE', working, member) then
    if redis.call('HEXISTS', jobs, member) == 1 then push_out(member, (claim_if_readable(raw))) end
    return add_run(member, due, extra)
  end
  local claim = claim_at_work(raw, now)
  if has(claim.intent, PUT) and claim.put_due > 0 then
    skip(member, claim.put_due, claim.put_due + 1, WHY.OVERLAP)
  end
  claim.intent = with(with(without(without(claim.intent, PAUSE), REMOVE), PUT), CANCEL)
  claim.put_due, claim.put_first, claim.put_record = due, due, extra
  set(claims, member, write_claim(claim))
  if claim.token == 0 then return end
  for _, part in ipairs({member, claim.owner, claim.token}) do to_cancel[#to_cancel + 1] = part end
end

-- A run of that occurrence may have been fired already.
local function put_extra(id, due, record, alone)
  local member = extra_run_id(id, due)
  if redis.call('HEXISTS', jobs, member) == 1 then return end
  local extra = with_version(as_extra_run(record), call.version)
  if alone == 1 then put_alone(id, due, extra) else add_run(member, due, extra) end
end

local function plan(id, claim, next_due, alone, passed)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  local verdict, put = apply_intent(id, claim, record, 0, false)
  if verdict then return end
  skip_passed(id, passed, math.huge)
  if has(claim.intent, CANCEL) then
    skip(id, claim.due, claim.due + 1, WHY.CANCELLED)
  else
    put_extra(id, claim.due, put, alone)
  end
  if next_due == 0 then return end_job(id, 0) end
  local counted_now = with_uncounted(put, claim)
  if counted_now ~= record then set(jobs, id, counted_now) end
  drop(claims, id)
  enter_line(id, next_due, nil, put)
end

local held, lost = settle_each(ids, tokens, function(i, id, claim) plan(id, claim, nexts[i], alones[i], passes[i]) end)
if #held == 0 then return nothing_held(lost, {}) end
write_all()
if added > 0 then count_up('put', added) end
return commit(call, {1, lost, head(), call.carry, to_cancel}, 'plan', held)
