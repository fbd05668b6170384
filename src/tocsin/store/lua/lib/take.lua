-- take: turn due members into claims of this worker. Both claim scripts are this with other candidates.
-- What this worker has no handler for, or cannot read, is parked where a worker that can finds it.
local LARGEST = 4 * 1024 * 1024

local known
if handlers ~= '' then
  known = {}
  for at = 1, #handlers, 4 do known[struct.unpack('>I4', handlers, at)] = true end
end
local timeout_given = tonumber(timeout)

local function understood(record)
  return readable(record) and (not known or known[handler_of(record)])
end

-- The answer of a call is rebuilt from what is still held by its token, so that it can be given again.
local function told(made_at, with_token, ids)
  local records, held, kept = {}, {}, {}
  if #ids > 0 then
    local raws = redis.call('HMGET', claims, unpack(ids))
    for i, raw in ipairs(raws) do
      if raw and struct.unpack('>I8', raw) == with_token then
        kept[#kept + 1] = ids[i]
        held[#held + 1] = raw
      end
    end
    if #kept > 0 then records = redis.call('HMGET', jobs, unpack(kept)) end
  end
  return {1, made_at, with_token, kept, records, held}
end

local taken, parkings, bytes = {}, {}, 0
local all_records, all_claims = {}, {}

local function park_due(zset, id, due, raw)
  parkings[#parkings + 1] = id
  leave(zset, id)
  enter(parked, now, id)
  if not raw then set(claims, id, write_claim(fresh_claim(due))) end
end

-- `ids` and `scores` in step. Stops early when the records have filled the answer.
local function take(zset, ids, scores)
  local widest = tonumber(redis.call('HGET', meta, 'widest') or 0)
  local step = math.max(1, math.min(1000, math.floor(LARGEST / math.max(widest, 1))))
  for first = 1, #ids, step do
    if bytes >= LARGEST then return end
    local to = math.min(first + step - 1, #ids)
    local records = redis.call('HMGET', jobs, unpack(ids, first, to))
    local raws = redis.call('HMGET', claims, unpack(ids, first, to))
    for i = first, to do
      local id, record, raw = ids[i], records[i - first + 1], raws[i - first + 1]
      if understood(record) then
        local due, attempt, recoveries, intent = scores[i], 1, 0, 0
        if raw then
          local _
          _, due, attempt, recoveries, intent = struct.unpack('>I8I8I4I2B', raw)
        end
        local claim = struct.pack('>I8I8I4I2BBc0', token, due, attempt, recoveries, intent, #owner, owner)
        leave(zset, id)
        enter(working, now + (timeout_given > 0 and timeout_given or timeout_of(record)), id)
        set(claims, id, claim)
        taken[#taken + 1] = id
        all_records[#all_records + 1] = record
        all_claims[#all_claims + 1] = claim
        bytes = bytes + #record
      elseif zset == waiting then
        park_due(zset, id, scores[i], raw)
      end
    end
  end
end

-- Parked jobs whose handler this worker knows are taken straight from there, never the unreadable ones.
local function take_parked(ids)
  local raws = redis.call('HMGET', claims, unpack(ids))
  local fit, scores = {}, {}
  for i, raw in ipairs(raws) do
    local claim = raw and read_claim(raw)
    if claim and not has(claim.intent, UNREADABLE) and claim.due <= now then
      fit[#fit + 1] = ids[i]
      scores[#scores + 1] = claim.due
    end
  end
  if #fit > 0 then take(parked, fit, scores) end
end

local function finish_taking()
  apply()
  if #taken > 0 then redis.call('HINCRBY', meta, 'claimed', #taken) end
  if #taken == 0 and #parkings == 0 then
    -- Nothing changed but the seq: a late copy of this call must stay refused.
    redis.call('HSET', sessions, session, struct.pack('>I8I8', seq, now) .. cmsgpack.pack({now, token, taken}))
  else
    commit({now, token, taken}, 'claim', {taken, parkings, owner})
  end
  return {1, now, token, taken, all_records, all_claims}
end
