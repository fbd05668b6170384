-- endings: tell those that wait for a job how it ended, through the outbox, which any worker carries to them.
-- In `watchers`: upstream NUL queue of the dependent NUL dependent NUL life of its wait.
-- In `outbox`, all with score 0, so that they are found by their beginning:
--   E NUL upstream NUL outcome                                  it ended: tell its watchers; one at most per upstream
--   W NUL dependent NUL life NUL queue of upstream NUL upstream  let the dependent be among the watchers of upstream
-- Outcomes, as the worker sends them and `results` keeps them: u8 outcome, u64 time, msgpack of what came of it.
local FAILED, SUCCEEDED, SKIPPED, CANCELLED = 0, 1, 2, 3

local any_watchers = redis.call('EXISTS', watchers) == 1
local to_carry = 0

local function begins_with(zset, start)
  return redis.call('ZRANGEBYLEX', zset, '[' .. start .. '\0', '(' .. start .. '\1', 'LIMIT', 0, 1)[1]
end

local function pending_end(id) return begins_with(outbox, 'E\0' .. id) end

-- Whether there are any. While an end waits to be carried nobody is added, so all watchers wait for that one.
local function tell_watchers(id, outcome)
  if not any_watchers or not begins_with(watchers, id) then return false end
  to_carry = 1
  if not pending_end(id) then enter(outbox, 0, 'E\0' .. id .. '\0' .. string.format('%.0f', outcome)) end
  return true
end

-- Whether a job can be watched: the letters that job_watch answers with.
local function chance_to_watch(id)
  local record = redis.call('HGET', jobs, id)
  if not record then
    -- An outcome that somebody garbled is known to nobody.
    local ended = redis.call('HGET', results, id)
    local outcome = ended and string.byte(ended, 1)
    if outcome then return outcome <= CANCELLED and string.format('%d', outcome) or 'g' end
    local pending = pending_end(id)
    return pending and string.match(pending, '%z([0-3])$') or 'g'
  end
  if readable(record) and is_recurring(record) then return 'r' end
  if redis.call('ZSCORE', dead, id) then return string.format('%d', FAILED) end
  return pending_end(id) and 'l' or 'w'
end
