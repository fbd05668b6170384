-- audit_look: say where some jobs are, all at one instant. Changes nothing.
-- KEYS   jobs, waiting, working, paused, parked, dead, claims, errors, done, results, unnamed, blocked, needs
-- ARGV   items: msgpack [id] * n, at most 1000
-- RETURN a number per id, the sum of: 1 has a record, 2 waiting, 4 working, 8 paused, 16 parked, 32 dead, 64 done,
--        128 has a claim, 256 the claim is held, 512 the claim is unreadable, 1024 has an error, 2048 has a result,
--        4096 ready, 8192 blocked, 16384 ready but misplaced, 32768 `needs` has an entry for it, 65536 is in `unnamed`
--@include record
--@include claim_fields
--@include presence
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
      local claim, is_garbage = claim_if_readable(raw)
      local more = is_garbage and 512 or claim.token > 0 and 256 or 0
      seen[i] = seen[i] + 128 + more
    end
  end
end
return seen
