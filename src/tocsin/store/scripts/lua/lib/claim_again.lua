-- claim_again: claim runs that may have been claimed before, and set aside what this worker cannot run.
-- What it has no handler for, or cannot read, is parked, where a worker that can finds it. The layout of a claim is in
-- claim.lua. Apart from claim_batch.lua, because the fast path of run_claim does without.
--@include claim_batch
--@include record_claim
--@include claim_fields
--@include widest

-- Whether this is a claim at all, without taking it apart.
local function is_claim(raw)
  local owner_size = raw and #raw >= 25 and byte(raw, 24)
  return owner_size and #raw >= 25 + owner_size + (byte(raw, 25 + owner_size) or 255)
end

-- A run that was recovered twice may be what kills workers (score.lua).
local function is_suspect(raw) return byte(raw, 21) > 0 or byte(raw, 22) > 1 end

local function packed_tenant(tenant) return string.char(#tenant + 1) .. '=' .. tenant end

-- The claim that takes over where `raw` ended, or begins at `due` and `place`; `tenant` packed, if it counts for one.
local function claim_again(batch, raw, tenant)
  return batch.token_bytes .. sub(raw, STAMP_FROM, STAMP_TO) .. batch.owner_bytes .. (tenant or NO_TENANT)
end

local function new_claim_for(batch, due, place, tenant)
  if not tenant then return new_claim(batch, due, place) end
  return batch.token_bytes .. struct.pack('>I2I6', place, due) .. NEVER_CLAIMED .. batch.owner_bytes .. tenant
end

local function is_understood(batch, record)
  return is_readable(record) and (not batch.handlers or batch.handlers[sub(record, HANDLER_FROM, HANDLER_TO)])
end

-- What to answer at once: the worker's lease is over, or the queue is paused.
local function refusal(batch)
  if now > tonumber(lease) then return {-3, now} end
  if not batch.is_paused then return nil end
  local none = cmsgpack.pack({})
  if repeated == '1' then unchanged(call, {now, 0, none, 0, -1}) end
  return {1, now, 0, none, {}, '', -1, 0, 0}
end

-- The reply of a call that was answered before, from what its token still holds.
local function repeat_reply(made_at, token, packed, parked_then)
  local ids, records, stamps, kept = cmsgpack.unpack(packed), {}, {}, {}
  if #ids > 0 then
    local raws = redis.call('HMGET', claims, unpack(ids))
    for i, raw in ipairs(raws) do
      if token_of_claim(raw) == token then
        kept[#kept + 1] = ids[i]
        stamps[#stamps + 1] = sub(raw, STAMP_FROM, STAMP_TO)
      end
    end
    if #kept > 0 then records = redis.call('HMGET', jobs, unpack(kept)) end
  end
  return {1, made_at, token, cmsgpack.pack(kept), records, table.concat(stamps), -1, parked_then}
end

-- The next steps of the walk: fields of `meta` that change, and their values. It reads some of what the claim has read,
-- `bytes`, but not much more than a large record: one at a time until they are seen to be small. A page of a hash that
-- was larger before may be empty, so the number of pages is bounded, too.
local function walk_on(bytes)
  -- Another server, or the same after a restart, has its records in another order; after a repartitioning they are
  -- others.
  local info = redis.pcall('INFO', 'server')
  local server = type(info) == 'string' and string.match(info, 'run_id:(%w+)')
  if not server then return end
  local whose, cursor, seen = walk_of(redis.call('HGET', meta, 'walk'))
  if whose ~= epoch .. ':' .. server then whose, cursor, seen = epoch .. ':' .. server, '0', 0 end
  local read, most, pages = 0, math.min(bytes, 65536) / 2 + 4096, 0
  repeat
    local page = redis.call('HSCAN', jobs, cursor, 'COUNT', pages == 0 and 1 or 8)
    cursor, pages = page[1], pages + 1
    for at = 2, #page[2], 2 do
      local size = #page[2][at]
      read, seen = read + size, math.max(seen, size)
    end
  until cursor == '0' or read >= most or pages == 32
  if cursor == '0' then return 'walk', '', 'widest', string.format('%.0f', seen) end
  return 'walk', walk_text(whose, cursor, seen)
end

-- Write a claim and end it, as commit_claims does.
local function finish_claims(batch, since)
  local found = #batch.ids > 0 or batch.parked > 0
  if found or next(writes.leaving) or next(writes.entering) or next(writes.setting) or next(writes.dropping) then
    write_all()
  end
  if found and batch.widest > WIDE then return commit_claims(batch, since, walk_on(batch.bytes)) end
  return commit_claims(batch, since)
end

-- Claim one job, as `claim` says.
local function accept(batch, id, record, claim)
  enter(working, batch.deadlines[sub(record, TIMEOUT_FROM, TIMEOUT_TO)] or deadline_of(batch, record), id)
  set(claims, id, claim)
  local n = #batch.ids + 1
  batch.ids[n], batch.records[n], batch.stamps[n] = id, record, sub(claim, STAMP_FROM, STAMP_TO)
  batch.bytes = batch.bytes + #record
end

-- Claim one that was claimed before. Whether it is claimed now: a suspect is if this worker may try another one.
local function reclaim(batch, id, record, raw)
  if is_suspect(raw) then
    if batch.suspects_left < 1 then return false end
    batch.suspects_left = batch.suspects_left - 1
  end
  accept(batch, id, record, claim_again(batch, raw))
  return true
end

-- Park a job by its handler, or if its record is unreadable, by the time at which another worker may try.
local function set_aside(id, due, place, record, raw)
  if is_readable(record) then
    enter(parked, handler_of(record) + (raw and is_suspect(raw) and 0.5 or 0), id)
    if not raw then set(claims, id, write_claim(fresh_claim(due, place))) end
    return
  end
  local claim = claim_if_readable(raw) or fresh_claim(due, place)
  local times = unread_times(claim.intent) + 1
  claim.intent = with_unread_times(claim.intent, times)
  enter(parked, read_again_at(now, times), id)
  set(claims, id, write_claim(claim))
end

-- A job that leaves the line for `parked`.
local function park(batch, id, due, place, record, raw)
  batch.parked = batch.parked + 1
  set_aside(id, due, place, record, raw)
end

-- A suspect that was met in line leaves it, so that no claim meets it again.
local function send_apart(batch, zset, id, score, record, raw)
  if zset == parked or tonumber(score) <= LAST_APART then return end
  leave(zset, id)
  stand_apart(id, due_of_claim(raw), record)
  batch.sent_apart = batch.sent_apart + 1
end

-- Claim the job, or put it where it belongs. `stay`: the caller takes out of the set what was claimed.
local function take_one(batch, zset, id, score, record, raw, stay)
  if not is_understood(batch, record) then
    if zset == parked then return set_aside(id, now, 0, record, raw) end
    leave(zset, id)
    local due, place = due_and_place(tonumber(score))
    return park(batch, id, due, place, record, raw)
  end
  if not reclaim(batch, id, record, raw) then return send_apart(batch, zset, id, score, record, raw) end
  if not stay then leave(zset, id) end
end

-- Claim up to `most` of a sorted set. `ids` and `scores` (text) in step, from `from` on. Stops early when there are
-- enough, or when the records have filled the answer.
local function take(batch, zset, ids, scores, most, from, stay)
  for first = from, #ids, batch.at_once do
    if batch.bytes >= LARGEST then return end
    local at, to, before = first, math.min(first + batch.at_once - 1, #ids), first - 1
    local records = redis.call('HMGET', jobs, unpack(ids, first, to))
    local raws = batch.no_unfinished_runs and {} or redis.call('HMGET', claims, unpack(ids, first, to))
    while at <= to do
      local room = most - #batch.ids - batch.parked
      if room < 1 then return end
      -- What is no claim is garbage, and no reason to stop for the others.
      local fresh_to = at - 1
      while fresh_to < math.min(to, at + room - 1) and not is_claim(raws[fresh_to + 1 - before]) do
        fresh_to = fresh_to + 1
      end
      local unusual = claim_fresh(batch, ids, scores, records, before, at, fresh_to)
      if not stay then
        for i = at, unusual - 1 do leave(zset, ids[i]) end
      end
      at = unusual
      if at <= to and most - #batch.ids - batch.parked > 0 then
        local raw = raws[at - before]
        take_one(batch, zset, ids[at], scores[at], records[at - before], is_claim(raw) and raw or nil, stay)
        at = at + 1
      end
    end
  end
end
