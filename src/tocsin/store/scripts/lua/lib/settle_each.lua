-- settle_each: settle a batch of claims that one worker holds.
--@include settle
--@include counts
--@include requeue

local function held_by(raw, token)
  local claim = claim_if_readable(raw)
  if claim and claim.token == token and claim.token > 0 and claim.owner == owner then return claim end
end

-- Settle each of the named claims that this owner still holds: the ids that it held, and those that it had lost.
local function settle_each(ids, tokens, settle)
  local raws, held, lost = redis.call('HMGET', claims, unpack(ids)), {}, {}
  for i, id in ipairs(ids) do
    local claim = held_by(raws[i], tokens[i])
    if claim then
      held[#held + 1] = id
      leave_working(id, raws[i])
      settle(i, id, claim)
    else
      lost[#lost + 1] = id
    end
  end
  return held, lost
end

-- None of the claims is held, so nothing is written, not even the seq: a token is given once, so a late copy of the
-- call finds no more to do.
local function nothing_held(lost, more) return {1, lost, head(), 0, more} end

-- An attempt of an extra run has failed, for good or not: that counts for its job, too.
local function note_parent_failure(failures, id, failed)
  local parent = parent_of(id)
  if not parent then return end
  local counts = failures[parent] or {0, 0}
  failures[parent] = {counts[1] + failed, counts[2] + 1}
end

-- Call it after everything is written, because the job itself may have changed in this call.
local function count_parent_failures(failures)
  for parent, counts in pairs(failures) do
    local record = redis.call('HGET', jobs, parent)
    if record then redis.call('HSET', jobs, parent, counted(record, 0, counts[1], counts[2])) end
  end
end

