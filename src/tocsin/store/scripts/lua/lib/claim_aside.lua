-- claim_aside: put back in line what stands aside and this worker can run: parked jobs and suspects.
--@include record_claim

-- Parked jobs go back in line at their due time, so that they are claimed in their turn and not only when nothing else
-- is due.
-- Parked jobs are found by the digest of their handler, suspects by that and a half, so that they hide no others. Jobs
-- that could not be read are tried again when their time has come. The worker that looks at one of them claims it or
-- moves it.

-- The digests of this worker that are in `parked`: found there one by one, unless there are more than the worker has.
local function parked_digests(batch)
  local found, last = {}, 0
  for _ = 1, #handlers / 4 do
    local first = redis.call('ZRANGEBYSCORE', parked, '(' .. last + 0.5, '(4294967296', 'WITHSCORES', 'LIMIT', 0, 1)
    if not first[2] then return found end
    last = math.floor(tonumber(first[2]))
    if batch.handlers[digest_bytes(last)] then found[#found + 1] = last end
  end
  found = {}
  for at = 1, #handlers, 4 do found[#found + 1] = digest_at(handlers, at) end
  return found
end

-- Unreadable jobs whose time has come. Other workers get the first 10 s for jobs of handlers whose records this worker
-- could not read lately; they look about once a second.
local function unreadable_for_worker()
  local due = redis.call('ZRANGEBYSCORE', parked, 4294967296, now, 'WITHSCORES', 'LIMIT', 0, 50)
  local ids, could_not_read = {}, {}
  for at = 1, #(unread or ''), 4 do could_not_read[sub(unread, at, at + 3)] = true end
  for at = 1, #due, 2 do
    local record = next(could_not_read) and tonumber(due[at + 1]) > now - 10000 and redis.call('HGET', jobs, due[at])
    local leave = is_readable(record) and could_not_read[sub(record, HANDLER_FROM, HANDLER_TO)]
    if not leave then ids[#ids + 1] = due[at] end
  end
  return ids
end

-- Ids. `most` is of each digest, `most_suspects` of all.
local function parked_for_worker(batch, most, most_suspects)
  local aside = unreadable_for_worker()
  local function add(from, to, limit)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', parked, from, to, 'LIMIT', 0, limit)) do aside[#aside + 1] = id end
  end
  if not batch.handlers then
    add('-inf', '(4294967296', most)
    return aside
  end
  add('-inf', 0, 50)
  for _, digest in ipairs(parked_digests(batch)) do
    add(digest, digest, most)
    if most_suspects > 0 then add(digest + 0.5, digest + 0.5, most_suspects) end
    if #aside >= most + 100 then break end
  end
  return aside
end

-- Whether anything is to be written. What this worker cannot run after all stays aside: in line it would be set aside
-- again at once, for ever. So does a suspect that it may not try. It stops when the records are about as large as an
-- answer may be.
local function enter_parked(batch, most_suspects)
  local read, any = 0, false
  for _, id in ipairs(parked_for_worker(batch, 1000, most_suspects)) do
    if read >= LARGEST then break end
    local raw, record = redis.call('HGET', claims, id), redis.call('HGET', jobs, id)
    local claim = claim_if_readable(raw)
    local suspect = claim and claim.recoveries > 1
    read, any = read + #(record or ''), true
    if not is_understood(batch, record) then
      set_aside(id, now, 0, record, claim and raw)
    elseif suspect and batch.handlers and most_suspects < 1 then
      enter(parked, handler_of(record) + 0.5, id)
    else
      if suspect then most_suspects = most_suspects - 1 end
      leave(parked, id)
      if not claim then drop(claims, id) end
      claim = claim or fresh_claim(now)
      enter_line(id, claim.due, claim, record)
    end
  end
  return any
end

-- Let those that stand apart (score.lua) into the line, as many as this worker may try. In line they have the
-- place of their due time, so that caps, rates and turns hold for them as for all others. A suspect whose turn does not
-- come stays in line until a claim meets it, which takes it or sends it back.
-- Whether anything is to be written. It looks at some more than `most`, because it parks what this worker has no
-- handler for.
local function call_suspects(batch, most)
  if most < 1 then return false end
  local found = redis.call('ZRANGEBYSCORE', waiting, '-inf', APART_ONLY, 'LIMIT', 0, most + 50)
  local called, read = 0, 0
  for _, id in ipairs(found) do
    if called == most or read >= LARGEST then break end
    local raw, record = redis.call('HGET', claims, id), redis.call('HGET', jobs, id)
    local claim = claim_if_readable(raw)
    local due, place = claim and claim.due or now, claim and claim.place or 0
    read = read + #(record or '')
    leave(waiting, id)
    if is_understood(batch, record) then
      enter_ready(id, due, place, record)
      called = called + 1
    else
      park(batch, id, due, place, record, claim and raw)
    end
  end
  return #found > 0
end
