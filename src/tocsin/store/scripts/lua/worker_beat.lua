-- worker_beat: raise a worker's counter, so that the others see it alive, and return the workers that are late.
-- KEYS   workers, beats, pulses, buried, steps
-- ARGV   clock, worker, counter, about, joins, late, step, known
--        joins: '1' for the first beat of a worker, '' for all others; late: after how many ms without a beat a worker
--        is late; step: by how many ms this worker saw the clock set, '' for not; known: the sum of steps before that
-- RETURN {1, now, [worker, counter]…, [buried]…, workers, sum, steps, before}: workers that are late, dead workers
--        whose runs no worker brings back, how many workers there are, the sum of all steps, the steps that count, and
--        the counter that this worker had, '' if it joins; {0, now}: this worker was buried, or the server forgot it
--@include time
local now = read_time()
--@include clock_steps
local MOST, MOST_BURIED = 1000, 100
-- No worker gets so much time to bring back the runs of a dead one; if it has, the clock was set back since.
local TOO_FAR_MS = 60000

if redis.call('ZSCORE', buried, worker) then return {0, now} end
local before = redis.call('HGET', beats, worker)
if joins == '' and not before then return {0, now} end
-- The removal comes first, so that it passes on a full server: a worker that cannot beat may not claim
-- either, and then no worker would run the jobs that fill the memory.
redis.call('ZREM', pulses, worker)
redis.call('HSET', beats, worker, counter)
redis.call('ZADD', pulses, now, worker)
redis.call('HSET', workers, worker, about)
local sum, list = read_steps(redis.call('GET', steps))
if step ~= '' then
  -- Another worker may have reported the same step, or a part of it, since this one last heard of steps.
  local ahead = tonumber(step) - (sum - tonumber(known))
  if math.abs(ahead) > STEP_MS and (ahead > 0) == (tonumber(step) > 0) then
    sum = sum + ahead
    note_step(list, ahead)
    redis.call('SET', steps, write_steps(sum, list))
  end
end

-- A name that is in one key only, because somebody wrote or removed it by hand, gets a beat, so that it is buried like
-- a dead worker.
if redis.call('HLEN', beats) ~= redis.call('ZCARD', pulses) then
  for _, name in ipairs(redis.call('HKEYS', beats)) do
    if not redis.call('ZSCORE', pulses, name) then redis.call('ZADD', pulses, 0, name) end
  end
end
if redis.call('HLEN', workers) ~= redis.call('HLEN', beats) then
  for _, name in ipairs(redis.call('HKEYS', workers)) do
    if redis.call('HEXISTS', beats, name) == 0 then redis.call('HDEL', workers, name) end
  end
end

-- Names with a time in the future are from before the clock was set back: their age is unknown.
local silent = redis.call('ZRANGEBYSCORE', pulses, '-inf', now - late, 'LIMIT', 0, MOST)
for _, name in ipairs(redis.call('ZRANGEBYSCORE', pulses, now + late, '+inf', 'LIMIT', 0, MOST)) do
  silent[#silent + 1] = name
end
local found = {}
for _, name in ipairs(silent) do
  found[#found + 1] = name
  found[#found + 1] = redis.call('HGET', beats, name) or ''
end
local left, burials = {}, redis.call('ZRANGE', buried, 0, MOST_BURIED - 1, 'WITHSCORES')
for at = 1, #burials, 2 do
  local taken = tonumber(burials[at + 1])
  if taken <= now or taken > now + TOO_FAR_MS then left[#left + 1] = burials[at] end
end
return {1, now, found, left, redis.call('HLEN', beats), sum, write_steps(sum, list), before or ''}
