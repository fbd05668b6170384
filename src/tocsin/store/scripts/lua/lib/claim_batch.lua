-- claim_batch: the runs that one call of a worker claims. This is what every claim needs; claim_again.lua has the rest.
--@include record
--@include claim
--@include score_parts

-- An answer holds about so many bytes of records.
local LARGEST = 4 * 1024 * 1024

-- First attempt, no recoveries, no intent; then, behind the owner, no tenant.
local NEVER_CLAIMED, NO_TENANT = '\0\0\0\1\0\0\0', '\0'

-- `batch` keeps what all of its claims have in common.
local function begin_claims(batch)
  batch.token_bytes = struct.pack('>I8', call.token)
  batch.owner_bytes = string.char(#owner) .. owner
  batch.never_claimed = NEVER_CLAIMED .. batch.owner_bytes .. NO_TENANT
end

-- Of a run that was never claimed before. Such claims differ in their due time and place only.
local function new_claim(batch, due, place)
  return batch.token_bytes .. struct.pack('>I2I6', place, due) .. batch.never_claimed
end

-- When a run that is claimed now must have ended, as text: by the caller's timeout, or else by that of its record.
local function deadline_of(batch, record)
  local given = tonumber(timeout)
  local bytes = sub(record, TIMEOUT_FROM, TIMEOUT_TO)
  local deadline = string.format('%.0f', now + (given > 0 and given or struct.unpack('>I4', bytes)))
  batch.deadlines[bytes] = deadline
  return deadline
end

-- The state of a claim, which its other functions take.
--   is_paused, widest, claimed, max_active, capped_since   as `meta` has them
--   at_once                      how many records may be read together
--   handlers                     the digests that this worker knows, as the bytes of a record; nil for any
--   deadlines                    by the bytes of the timeout: a batch has few different ones
--   no_unfinished_runs           only runs at work have an entry in `claims`: no other has to be looked up
--   suspects_left                how many suspects this worker may still take
--   ids, records, stamps, bytes  what was claimed, and the size of its records
--   parked, sent_apart           how many left the line for `parked`, and for their place apart
local function begin_batch()
  local stored = redis.call('HMGET', meta, 'paused', 'widest', 'claimed', 'max_active', 'capped')
  local widest = tonumber(stored[2]) or 0
  local batch = {
    is_paused = stored[1], widest = widest, claimed = tonumber(stored[3]) or 0, max_active = tonumber(stored[4]),
    capped_since = tonumber(stored[5]), deadlines = {},
    at_once = math.max(1, math.min(1000, math.floor(LARGEST / math.max(widest, 1)))),
    no_unfinished_runs = redis.call('HLEN', claims) == redis.call('ZCARD', working),
    suspects_left = tonumber(suspects), ids = {}, records = {}, stamps = {}, bytes = 0, parked = 0, sent_apart = 0,
  }
  if handlers ~= '' then
    batch.handlers = {}
    for at = 1, #handlers, 4 do batch.handlers[sub(handlers, at, at + 3)] = true end
  end
  begin_claims(batch)
  return batch
end

-- Claim jobs that were never claimed before, from `at` to `to`, up to the first that this worker cannot run, which is
-- returned. `scores` are text; `records` begin behind `before`.
local function claim_fresh(batch, ids, scores, records, before, at, to)
  local entering, setting = list_of(writes.entering, working), list_of(writes.setting, claims)
  local claimed, kept, stamps = batch.ids, batch.records, batch.stamps
  local known, deadlines = batch.handlers, batch.deadlines
  -- Loops count in locals: `#` of a long table is a search.
  local n, entering_n, setting_n, bytes = #claimed, #entering, #setting, batch.bytes
  local last_score, claim, stamp
  while at <= to do
    local id, record, score = ids[at], records[at - before], scores[at]
    if not is_readable(record) or known and not known[sub(record, HANDLER_FROM, HANDLER_TO)] then break end
    if score ~= last_score then
      claim = new_claim(batch, due_and_place(tonumber(score)))
      last_score, stamp = score, sub(claim, STAMP_FROM, STAMP_TO)
    end
    n = n + 1
    entering[entering_n + 1] = deadlines[sub(record, TIMEOUT_FROM, TIMEOUT_TO)] or deadline_of(batch, record)
    entering[entering_n + 2] = id
    setting[setting_n + 1], setting[setting_n + 2] = id, claim
    entering_n, setting_n = entering_n + 2, setting_n + 2
    claimed[n], kept[n], stamps[n] = id, record, stamp
    bytes = bytes + #record
    at = at + 1
  end
  batch.bytes = bytes
  return at
end

-- End a claim when all is written, and return what the worker gets. Idle workers poll, so a claim that finds nothing
-- writes nothing. But one that was sent twice leaves its seq behind: the other copy may still come and find something,
-- and its reply would be lost.
-- `since`: since when limits have held jobs back, -1 if they do not. `...`: fields of `meta` that change, and their
-- values.
local function commit_claims(batch, since, ...)
  local ids = cmsgpack.pack(batch.ids)
  local answer = {now, call.token, ids, batch.parked, since}
  if batch.ids[1] or batch.parked > 0 then
    commit(call, answer, 'claim', ids, nil, 'claimed', string.format('%.0f', batch.claimed + #batch.ids), ...)
  elseif repeated == '1' then
    unchanged(call, answer)
  end
  return {1, now, call.token, ids, batch.records, table.concat(batch.stamps), -1, batch.parked}
end
