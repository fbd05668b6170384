-- audit_look: where some jobs stand, all of it at one instant. Changes nothing.
-- KEYS   jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        dead      ZSET    id -> since ms
--        claims    HASH    id -> claim
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        blocked   ZSET    id -> not before ms
--        needs     HASH    id -> what it waits for
-- ARGV   items: msgpack [id] * n, at most 1000
-- RETURN a number per id, the sum of: 1 has a record, 2 waiting, 4 working, 8 paused, 16 parked, 32 dead, 64 done,
--        128 has a claim, 256 the claim is held, 512 the claim is unreadable, 1024 has an error, 2048 has a result,
--        4096 ready, 8192 blocked, 16384 ready but not as it should be, 32768 something is known of what it waits for,
--        65536 is among those in done that nobody named
-- USES   claims, standing
local ids = cmsgpack.unpack(items)
local seen = {}
for i = 1, #ids do seen[i] = 0 end

for n, stage in ipairs({waiting, working, paused, parked, dead, done}) do
  if redis.call('ZCARD', stage) > 0 then
    for i, score in ipairs(redis.call('ZMSCORE', stage, unpack(ids))) do
      if score then seen[i] = seen[i] + 2 ^ n end
    end
  end
end

for stage, number in pairs({[blocked] = 8192, [unnamed] = 65536}) do
  if redis.call('ZCARD', stage) > 0 then
    for i, score in ipairs(redis.call('ZMSCORE', stage, unpack(ids))) do
      if score then seen[i] = seen[i] + number end
    end
  end
end

local function mark(hash, number)
  if redis.call('HLEN', hash) == 0 then return end
  for i, id in ipairs(ids) do
    if redis.call('HEXISTS', hash, id) == 1 then seen[i] = seen[i] + number end
  end
end
for i, id in ipairs(ids) do
  if is_ready(id) then seen[i] = seen[i] + 4096 end
  if is_misplaced(id) then seen[i] = seen[i] + 16384 end
end
mark(jobs, 1)
mark(errors, 1024)
mark(results, 2048)
mark(needs, 32768)

if redis.call('HLEN', claims) > 0 then
  for i, id in ipairs(ids) do
    local raw = redis.call('HGET', claims, id)
    if raw then
      local fine, claim = pcall(read_claim, raw)
      local more = not fine and 512 or claim.token > 0 and 256 or 0
      seen[i] = seen[i] + 128 + more
    end
  end
end
return seen
