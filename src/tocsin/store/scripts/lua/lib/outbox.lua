-- outbox: the entries of `watchers` and `outbox`, by which a job's end reaches the jobs that wait for it.
-- All have score 0, so that they are found by how they begin.
-- In `watchers`: upstream NUL queue of the dependent NUL dependent NUL life of its wait.
-- In `outbox`:
--   E NUL upstream NUL outcome                                   the upstream ended; at most one of each
--   W NUL dependent NUL life NUL queue of upstream NUL upstream  let the dependent watch the upstream

local function first_with(zset, start)
  return redis.call('ZRANGEBYLEX', zset, '[' .. start .. '\0', '(' .. start .. '\1', 'LIMIT', 0, 1)[1]
end

local function end_entry(upstream, outcome) return 'E\0' .. upstream .. '\0' .. string.format('%.0f', outcome) end

-- `source`: queue NUL upstream.
local function wait_entry(dependent, life, source) return 'W\0' .. dependent .. '\0' .. life .. '\0' .. source end

-- The entry that says that a job has ended, until it is carried.
local function pending_end(upstream) return first_with(outbox, 'E\0' .. upstream) end
