-- audit_look: where some jobs stand, all of it at one instant. Changes nothing.
-- KEYS   jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        paused    ZSET    id -> since ms
--        parked    ZSET    id -> since ms
--        dead      ZSET    id -> since ms
--        claims    HASH    id -> claim
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
-- ARGV   items: msgpack [id] * n, at most 1000
-- RETURN a number per id, the sum of: 1 has a record, 2 waiting, 4 working, 8 paused, 16 parked, 32 dead, 64 done,
--        128 has a claim, 256 the claim is held, 512 the claim is unreadable, 1024 has an error, 2048 has a result
-- USES   claims
local ids = cmsgpack.unpack(items)
local seen = {}
for i = 1, #ids do seen[i] = 0 end

for n, set in ipairs({waiting, working, paused, parked, dead, done}) do
  for i, score in ipairs(redis.call('ZMSCORE', set, unpack(ids))) do
    if score then seen[i] = seen[i] + 2 ^ n end
  end
end

for i, id in ipairs(ids) do
  local sum = seen[i]
  local raw = redis.call('HGET', claims, id)
  if raw then
    sum = sum + 128
    local readable, claim = pcall(read_claim, raw)
    if not readable then sum = sum + 512 elseif claim.token > 0 then sum = sum + 256 end
  end
  if redis.call('HEXISTS', jobs, id) == 1 then sum = sum + 1 end
  if redis.call('HEXISTS', errors, id) == 1 then sum = sum + 1024 end
  if redis.call('HEXISTS', results, id) == 1 then sum = sum + 2048 end
  seen[i] = sum
end
return seen
