-- count_up: raise a counter in `meta`, after everything is written.
-- A counter that somebody garbled begins anew: nothing may fail after the first write.
local function count_up(counter, times)
  if type(redis.pcall('HINCRBY', meta, counter, times)) == 'table' then redis.call('HSET', meta, counter, times) end
end
