-- parked: what was set aside, and this worker can take, goes back in line at its due time, so that it is taken in its turn
-- and not when nothing else is due.
-- What is parked is found by the digest of its handler, suspects by that and a half: they hide no others. What could not
-- be read is tried again when its time has come. Who looks at one of these takes it or moves it (look_again in take.lua).

-- The digests of this worker that stand in `parked`. The fewer are gone through: those that stand there, one by one, unless
-- they are more than the worker has.
local function digests_for_us()
  local found, last = {}, 0
  for _ = 1, #handlers / 4 do
    local first = redis.call('ZRANGEBYSCORE', parked, '(' .. last + 0.5, '(4294967296', 'WITHSCORES', 'LIMIT', 0, 1)
    if not first[2] then return found end
    last = math.floor(tonumber(first[2]))
    if known[struct.pack('>I4', last)] then found[#found + 1] = last end
  end
  found = {}
  for at = 1, #handlers, 4 do found[#found + 1] = struct.unpack('>I4', handlers, at) end
  return found
end

-- `most` is of each digest, `most_suspects` of all: ids.
local function parked_for_us(most, most_suspects)
  local due = redis.call('ZRANGEBYSCORE', parked, 4294967296, now, 'WITHSCORES', 'LIMIT', 0, 50)
  local aside, could_not_read = {}, {}
  for at = 1, #(unread or ''), 4 do could_not_read[sub(unread, at, at + 3)] = true end
  for at = 1, #due, 2 do
    -- What this worker could not read others get first, for 10 s after its time has come. They look about once a second.
    local record = next(could_not_read) and tonumber(due[at + 1]) > now - 10000 and redis.call('HGET', jobs, due[at])
    if not (readable(record) and could_not_read[sub(record, 20, 23)]) then aside[#aside + 1] = due[at] end
  end
  local function add(from, to, limit)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', parked, from, to, 'LIMIT', 0, limit)) do aside[#aside + 1] = id end
  end
  if not known then
    add('-inf', '(4294967296', most)
    return aside
  end
  add('-inf', 0, 50)
  for _, digest in ipairs(digests_for_us()) do
    add(digest, digest, most)
    if most_suspects > 0 then add(digest + 0.5, digest + 0.5, most_suspects) end
    if #aside >= most + 100 then break end
  end
  return aside
end

-- Puts them in line. What this worker cannot take after all stays aside: it would be set aside again at once, for ever. So
-- does a suspect that it may not try. As many as there are, until their records are about as large as an answer may be.
-- Whether anything is to be written.
local function enter_parked(most_suspects)
  local read, any = 0, false
  for _, id in ipairs(parked_for_us(1000, most_suspects)) do
    if read >= LARGEST then break end
    local raw, record = redis.call('HGET', claims, id), redis.call('HGET', jobs, id)
    local claim = claim_if_readable(raw)
    local suspect = claim and claim.recoveries > 1
    read, any = read + #(record or ''), true
    if not understood(record) then
      look_again(id, record, claim and raw)
    elseif suspect and known and most_suspects < 1 then
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
