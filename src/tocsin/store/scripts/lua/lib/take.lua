-- take: turn due members into claims of this worker. Both claim scripts are this with other candidates.
-- What this worker has no handler for, or cannot read, is parked where a worker that can finds it.
local LARGEST = 4 * 1024 * 1024

local given = redis.call('HMGET', meta, 'paused', 'widest', 'claimed', 'max_active', 'capped')
local paused_now = given[1]

-- How many records may be read together.
local widest = tonumber(given[2]) or 0
local at_once = math.max(1, math.min(1000, math.floor(LARGEST / math.max(widest, 1))))

-- Handlers by the four bytes of their digest, as they stand in a record's header.
local known
if handlers ~= '' then
  known = {}
  for at = 1, #handlers, 4 do known[string.sub(handlers, at, at + 3)] = true end
end

local function understood(record)
  return readable(record) and (not known or known[sub(record, 20, 23)])
end

-- Deadlines by how a record begins, timeout included: a batch has few different ones.
local timeout_given = tonumber(timeout)
local deadlines = {}
local function deadline_of(record)
  local ms = timeout_given > 0 and timeout_given or timeout_of(record)
  local deadline = string.format('%.0f', now + ms)
  deadlines[sub(record, 1, 9)] = deadline
  return deadline
end

-- Of a claim, what the worker is told: place, due, attempt, recoveries, intent.
local function stamp_of(claim) return sub(claim, 9, 23) end

-- Claims of runs that were never claimed before differ in their due only, and in the tenant where shares are counted.
local before_due = struct.pack('>I8', token)
local by_owner = string.char(#owner) .. owner
local after_due = struct.pack('>I4I2B', 1, 0, 0) .. by_owner .. string.char(0)
local last_score, last_claim, last_stamp
local function first_claim(score)
  local at = tonumber(score)
  -- Nobody who keeps to these scripts writes another score below 0, and none can be packed.
  if at < 0 then at = is_apart(at) and due_apart(at) or 0 end
  local due = math.floor(at)
  -- What is below the millisecond is the place, see claims.lua.
  last_score, last_claim = score, before_due .. struct.pack('>I2I6', (at - due) * 4096, due) .. after_due
  last_stamp = stamp_of(last_claim)
end

local function next_claim(raw)
  return before_due .. string.sub(raw, 9, 23) .. by_owner .. string.char(0)
end

-- The answer of a call is rebuilt from what is still held by its token, so that it can be given again.
local function told(made_at, with_token, packed, parked_then)
  local ids, records, held, kept = cmsgpack.unpack(packed), {}, {}, {}
  if #ids > 0 then
    local raws = redis.call('HMGET', claims, unpack(ids))
    for i, raw in ipairs(raws) do
      if raw and #raw >= 24 and struct.unpack('>I8', raw) == with_token then
        kept[#kept + 1] = ids[i]
        held[#held + 1] = stamp_of(raw)
      end
    end
    if #kept > 0 then records = redis.call('HMGET', jobs, unpack(kept)) end
  end
  return {1, made_at, with_token, cmsgpack.pack(kept), records, table.concat(held), -1, parked_then}
end

-- Idle workers poll, so a claim that finds nothing writes nothing. But one that was sent twice leaves its seq behind: the
-- other copy may still come, find something, and nobody would hear of it.
local function found_nothing(answer)
  if next(out) or next(into) or next(fields) or next(unset) then apply() end
  if repeated == '1' then unchanged(answer) end
end

-- A run that was recovered twice may be what kills workers (lib/apart.lua). Only so many are given out, so that it takes
-- no other with it.
local suspects_left = tonumber(suspects)
local function is_suspect(raw) return string.byte(raw, 21) > 0 or string.byte(raw, 22) > 1 end
local function due_of(raw) return (struct.unpack('>I6', raw, 11)) end

local taken, parkings, bytes = {}, {}, 0
-- How many left the line to stand apart.
local apart_count = 0
local all_records, stamps = {}, {}

-- Out of the line, as far as it is still to be taken out, and aside.
local function park(id, due, place, record, raw)
  parkings[#parkings + 1] = id
  if readable(record) then
    enter(parked, handler_of(record) + (raw and is_suspect(raw) and 0.5 or 0), id)
    if not raw then set(claims, id, write_claim(fresh_claim(due, place))) end
  else
    local claim = claim_if_readable(raw) or fresh_claim(due, place)
    local times = unread_times(claim.intent) + 1
    claim.intent = with_unread_times(claim.intent, times)
    enter(parked, read_again_at(times), id)
    set(claims, id, write_claim(claim))
  end
end

-- A parked one that could not be read, and is not for this worker: it is kept for those who know its handler, or where
-- not even that can be read, until the next one tries.
local function look_again(id, record, raw)
  park(id, now, 0, record, raw)
  parkings[#parkings] = nil
end

local function park_due(zset, id, score, record, raw)
  leave(zset, id)
  local at = tonumber(score)
  if is_apart(at) then at = due_apart(at) end
  local due = math.floor(at)
  park(id, math.max(due, 0), (at - due) * 4096, record, raw)
end

-- Where every entry of `claims` belongs to `working`, no other has one: nothing to look up.
local all_fresh = redis.call('HLEN', claims) == redis.call('ZCARD', working)

-- Nearly all: never claimed before, and this worker has their handler. From `at` on, as far as that goes, up to `to`;
-- `records` begin behind `before`. Where it ended.
local function take_plain(ids, scores, records, before, at, to)
  local entered, claimed = list_of(into, working), list_of(fields, claims)
  -- Loops count in locals: `#` of a long table is a search.
  local n, entered_n, claimed_n = #taken, #entered, #claimed
  while at <= to do
    local id, record = ids[at], records[at - before]
    if not understood(record) then break end
    if scores[at] ~= last_score then first_claim(scores[at]) end
    n = n + 1
    entered[entered_n + 1], entered[entered_n + 2] = deadlines[sub(record, 1, 9)] or deadline_of(record), id
    claimed[claimed_n + 1], claimed[claimed_n + 2] = id, last_claim
    entered_n, claimed_n = entered_n + 2, claimed_n + 2
    taken[n], all_records[n], stamps[n] = id, record, last_stamp
    bytes = bytes + #record
    at = at + 1
  end
  return at
end

-- One that was claimed before. Whether it is taken now: a suspect is if this worker may try another one.
local function take_again(id, record, raw)
  if is_suspect(raw) then
    if suspects_left < 1 then return false end
    suspects_left = suspects_left - 1
  end
  local claim, n = next_claim(raw), #taken + 1
  enter(working, deadlines[sub(record, 1, 9)] or deadline_of(record), id)
  set(claims, id, claim)
  taken[n], all_records[n], stamps[n] = id, record, stamp_of(claim)
  bytes = bytes + #record
  return true
end

-- A suspect that was met in line leaves it, so that no claim meets it again.
local function send_apart(zset, id, score, record, raw)
  if zset == parked or is_apart(tonumber(score)) then return end
  leave(zset, id)
  stand_apart(id, due_of(raw), record)
  apart_count = apart_count + 1
end

-- What is no claim is garbage, and no reason to stop for the others.
local function claimed_before(raws, at) return raws and raws[at] and is_claim(raws[at]) end

-- `ids` and `scores` (text) in step, from `from` on. Stops early when there are enough, or the records have filled the
-- answer. `stay`: the caller takes out of the set what was taken.
local function take(zset, ids, scores, most, from, stay)
  for first = from, #ids, at_once do
    if bytes >= LARGEST then return end
    local at, to, before = first, math.min(first + at_once - 1, #ids), first - 1
    local records = redis.call('HMGET', jobs, unpack(ids, first, to))
    local raws = not all_fresh and redis.call('HMGET', claims, unpack(ids, first, to))
    while at <= to do
      local room = most - #taken - #parkings
      if room < 1 then return end
      local plain_to = at - 1
      while plain_to < math.min(to, at + room - 1) and not claimed_before(raws, plain_to + 1 - before) do
        plain_to = plain_to + 1
      end
      local odd = take_plain(ids, scores, records, before, at, plain_to)
      if not stay then
        for i = at, odd - 1 do leave(zset, ids[i]) end
      end
      at = odd
      if at <= to and most - #taken - #parkings > 0 then
        local id, record, raw = ids[at], records[at - before], claimed_before(raws, at - before) and raws[at - before]
        if not understood(record) then
          if zset == parked then look_again(id, record, raw) else park_due(zset, id, scores[at], record, raw) end
        elseif not take_again(id, record, raw) then
          send_apart(zset, id, scores[at], record, raw)
        elseif not stay then
          leave(zset, id)
        end
        at = at + 1
      end
    end
  end
end

-- Parked jobs whose handler this worker knows are taken straight from there.
local function take_parked(ids, most)
  local raws = redis.call('HMGET', claims, unpack(ids))
  local fit, scores = {}, {}
  for i, raw in ipairs(raws) do
    local claim = claim_if_readable(raw) or fresh_claim(now)
    if claim.due <= now then
      fit[#fit + 1] = ids[i]
      scores[#scores + 1] = string.format('%.0f', claim.due)
    end
  end
  if #fit > 0 then take(parked, fit, scores, most, 1) end
end

-- `since`: from when on limits kept some back until now, -1 if they did not; it is part of the answer.
local function finish_taking(since)
  local ids = cmsgpack.pack(taken)
  local answer = {now, token, ids, #parkings, since}
  if #taken == 0 and #parkings == 0 then
    found_nothing(answer)
  else
    apply()
    local claimed = string.format('%.0f', (tonumber(given[3]) or 0) + #taken)
    if is_wide(widest) then
      commit(answer, 'claim', ids, nil, 'claimed', claimed, walk_on(bytes))
    else
      commit(answer, 'claim', ids, nil, 'claimed', claimed)
    end
  end
  return {1, now, token, ids, all_records, table.concat(stamps), -1, #parkings}
end
