-- run_plan: give the occurrence that a claimed job is due for a run of its own, an extra one at that time, and let the
-- job wait for its next. One that is to be alone takes the place of the last such run: if that waits it is dropped, if it
-- is working it is cancelled, and the new one is put when it ends.
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
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        watchers  ZSET    who is told when a job ends (lib/endings.lua)
--        outbox    ZSET    what is to be carried (lib/endings.lua)
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, next dues (0 for none), alone 0 or 1, passed;
--        passed: the ticks that the job passes, as in run_finish
-- RETURN {1, lost, head, carry, told}: lost, head and carry as run_finish; told: [id, owner, token] * n of the runs that are to be
--        cancelled, for their owners to be told
-- USES   call, records, claims, moves, line, endings, widest, settle
if answered then return answered end
local ids, tokens, nexts, alones, passes = unpack(cmsgpack.unpack(items))
local raws = claims_of(ids)
local lost, planned, told, added = {}, {}, {}, 0

local function line_up(member, due, extra)
  set(jobs, member, extra)
  store_again(extra)
  enter_line(member, due, nil, extra)
  added = added + 1
end

-- The one before it, which has not begun, or has ended badly.
local function push_out(member, claim)
  local spot = spot_of(member)
  if spot then
    local was = claim and claim.due or spot.due
    skip(member, was, was + 1, WHY.OVERLAP)
    leave_line(member, spot)
  end
  for _, stage in ipairs({paused, parked, dead}) do
    local score = redis.call('ZSCORE', stage, member)
    if score then
      -- A dead one has run: that is told already.
      local was = claim and claim.due or tonumber(score)
      if stage ~= dead then skip(member, was, was + 1, WHY.OVERLAP) end
      leave(stage, member)
    end
  end
  drop(claims, member)
  drop(errors, member)
end

local function put_alone(id, due, extra)
  local member = id .. '\31' .. '0'
  local raw = redis.call('HGET', claims, member)
  if not redis.call('ZSCORE', working, member) then
    if redis.call('HEXISTS', jobs, member) == 1 then push_out(member, claim_if_readable(raw)) end
    return line_up(member, due, extra)
  end
  local claim = claim_at_work(raw)
  if has(claim.intent, PUT) and claim.put_due > 0 then
    skip(member, claim.put_due, claim.put_due + 1, WHY.OVERLAP)
  end
  claim.intent = with(with(without(without(claim.intent, PAUSE), REMOVE), PUT), CANCEL)
  claim.put_due, claim.put_first, claim.put_record = due, due, extra
  set(claims, member, write_claim(claim))
  if claim.token == 0 then return end
  for _, part in ipairs({member, claim.owner, claim.token}) do told[#told + 1] = part end
end

-- A run of that occurrence may have been fired already.
local function put_extra(id, due, record, alone)
  local member = id .. '\31' .. string.format('%.0f', due)
  if redis.call('HEXISTS', jobs, member) == 1 then return end
  local extra = with_version(as_extra(record), version)
  if alone == 1 then put_alone(id, due, extra) else line_up(member, due, extra) end
end

local function plan(id, raw, claim, next_due, alone, passed)
  stop(id, raw)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  local verdict, put = obeyed(id, claim, record, 0, false)
  if verdict then return end
  for at = 1, #passed, 17 do
    local first, to, why = struct.unpack('>I8I8B', passed, at)
    skip(id, first, to, why)
  end
  if has(claim.intent, CANCEL) then
    skip(id, claim.due, claim.due + 1, WHY.CANCELLED)
  else
    put_extra(id, claim.due, put, alone)
  end
  if next_due == 0 then return end_job(id, 0) end
  put = caught_up(put, claim)
  if put ~= record then set(jobs, id, put) end
  drop(claims, id)
  enter_line(id, next_due, nil, put)
end

for i, id in ipairs(ids) do
  local claim = held_by(raws[i], tokens[i], owner)
  if claim then
    planned[#planned + 1] = id
    plan(id, raws[i], claim, nexts[i], alones[i], passes[i])
  else
    lost[#lost + 1] = id
  end
end
if #planned == 0 then return nothing_held(lost, {}) end
apply()
if added > 0 then count_up('put', added) end
return commit({1, lost, head(), to_carry, told}, 'plan', planned)
