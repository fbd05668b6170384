-- promote: put in line what may be claimed now, in queues whose line is `ready`.
--@include waking
--@include claim_aside

-- Put due jobs in line, until their records are about as large as an answer may be. How many these were.
local function enter_due(batch, ids, scores)
  local read = 0
  for i, id in ipairs(ids) do
    if read >= LARGEST then return i - 1 end
    local claim = not batch.no_unfinished_runs and claim_if_readable(redis.call('HGET', claims, id))
    local record = redis.call('HGET', jobs, id)
    read = read + #(record or '')
    leave(waiting, id)
    if claim and claim.recoveries > 1 then
      stand_apart(id, claim.due, record)
    else
      -- Jobs that fall due together have no first: they stand by id, whichever page they come with.
      enter_ready(id, claim and claim.due or math.max(tonumber(scores[i]), 0), claim and claim.place or 0, record)
    end
  end
  return #ids
end

-- What has fallen due enters the line, with what was parked for workers like this one, tenants that have rested, and
-- suspects that this worker may try. It is written before jobs are claimed, so that these come from all of it. Redis is
-- in order after either write.
local function promote(batch, most_suspects)
  local found = redis.call('ZRANGEBYSCORE', waiting, NOT_APART, now, 'WITHSCORES', 'LIMIT', 0, 1000)
  local ids, scores = {}, {}
  for at = 1, #found, 2 do
    ids[#ids + 1], scores[#scores + 1] = found[at], found[at + 1]
  end
  local any = enter_due(batch, ids, scores) > 0
  if redis.call('ZCARD', parked) > 0 and enter_parked(batch, most_suspects) then any = true end
  if wake_rested() then any = true end
  if any then write_all() end
  -- Also suspects that have just come to stand apart.
  if not batch.no_unfinished_runs and call_suspects(batch, most_suspects) then write_all() end
end
