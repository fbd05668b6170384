-- settle: end a claim. A person's intent, written while the job was working, goes before the worker's wish.
local function held_by(raw, want, owner)
  local claim = claim_if_readable(raw)
  if claim and claim.token == want and claim.token > 0 and claim.owner == owner then return claim end
end

local function parent_of(id)
  local at = string.find(id, '\31', 1, true)
  return at and string.sub(id, 1, at - 1)
end

-- An attempt of an extra run has failed, for good or not: that counts for its job, too.
local function owe(owed, id, failed)
  local parent = parent_of(id)
  if not parent then return end
  local counts = owed[parent] or {0, 0}
  owed[parent] = {counts[1] + failed, counts[2] + 1}
end

-- After all else: the job itself may have changed in this call.
local function pay(owed)
  for parent, counts in pairs(owed) do
    local record = redis.call('HGET', jobs, parent)
    if record then redis.call('HSET', jobs, parent, counted(record, 0, counts[1], counts[2])) end
  end
end

-- A run of a schedule is given up before it has ended, by who wrote the intents of its claim: so is its tick, and
-- where the job itself goes on elsewhere, all that were due.
local function give_up(id, claim, recurring)
  local why = has(claim.intent, CANCEL) and WHY.CANCELLED or WHY.EDITED
  if parent_of(id) then
    skip(id, claim.due, claim.due + 1, why)
  elseif recurring then
    skip(id, first_owed(claim), math.max(claim.due + 1, math.min(cadence_end(claim), now + 1)), why)
  end
end

local function remember(id, keep, outcome, result, nobody_named_it)
  enter(done, now + keep * 1000, id)
  set(results, id, struct.pack('>BI8', outcome, now) .. result)
  if nobody_named_it then enter(unnamed, now, id) end
end

-- The job is no more. Its outcome is remembered for `keep` seconds, without one it was removed.
local function end_job(id, keep, outcome, result, nobody_named_it)
  if tell_watchers(id, outcome or CANCELLED) and outcome == SUCCEEDED then
    if keep == 0 then result = NOT_KEPT end
    -- An hour, for who was about to wait for it: any other end is as good as none.
    keep = math.max(keep, 3600)
    -- Dependents that are being put must find it, so the bound on unnamed outcomes leaves it alone.
    nobody_named_it = false
  end
  drop(jobs, id)
  drop(claims, id)
  drop(errors, id)
  if keep > 0 then remember(id, keep, outcome, result, nobody_named_it) end
end

-- The job is no more, and is remembered as its record says.
local function cancel_job(id, record, why)
  end_job(id, keep_of(record), CANCELLED, why, is_unnamed(record))
end

-- Obeys a remove, put or pause that was asked for while the job was working, and says which, with the record it left.
-- `record` is the job's record if the caller has read it, `next_due` 0 where the run keeps its due and attempt;
-- `not_before` is when that run may go on, if not at its due time.
-- With no such intent, or an edit that leaves the run alone: nil, and the record as it should be stored.
local function obeyed(id, claim, record, next_due, ended, not_before)
  local intent, due, recurring = claim.intent, next_due, false
  if has(intent, REMOVE) then
    end_job(id, 0)
    return 'removed'
  end
  if has(intent, PUT) then
    local old = record or redis.call('HGET', jobs, id)
    record = old and with_counts_of(claim.put_record, old) or claim.put_record
    store_again(record)
    recurring = readable(old) and is_recurring(old)
    if claim.put_due > 0 then due = claim.put_due end
    if due == 0 and ended then return nil, record end
    if due > 0 and not ended then give_up(id, claim, recurring) end
  end
  if due > 0 and record then record = caught_up(record, claim) end
  if has(intent, PAUSE) and not (ended and due == 0) then
    set(claims, id, write_claim(due > 0 and fresh_claim(due) or let_go(claim)))
    enter(paused, due > 0 and due or not_before or claim.due, id)
    if record then set(jobs, id, record) end
    return 'paused', record
  end
  if has(intent, PUT) and claim.put_due > 0 then
    drop(claims, id)
    drop(errors, id)
    enter_line(id, due, nil, record)
    set(jobs, id, record)
    return 'put', record
  end
  return nil, record
end

-- Whoever worked on it does so no longer.
local function stop(id, raw)
  leave(working, id)
  if raw then freed(raw) end
end

-- A run that has not ended goes back in line; its entry stays if it says more than the score does.
-- `record` is the job's as this call leaves it, if it changes it.
local function go_back(id, claim, not_before, record)
  let_go(claim)
  enter_line(id, not_before, claim, record)
  if is_plain(claim) and not_before == claim.due then
    drop(claims, id)
  else
    set(claims, id, write_claim(claim))
  end
end

-- When the first in line may start, or a suspect that this call brought back: who is idle should hear of it.
local function head_or_apart() return stands_apart and paced(now) or head() end

local function claims_of(ids) return redis.call('HMGET', claims, unpack(ids)) end

-- None of the claims is held, so nothing changes and nothing is written, not even the seq: a token is given once, so a
-- late copy of the call finds no more to do. The answer is that of any call that settles claims.
local function nothing_held(lost, more) return {1, lost, head(), 0, more} end
