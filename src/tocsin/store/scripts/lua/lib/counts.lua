-- counts: count runs by how they ended, in `meta` and in the record of their job (record.lua).
-- Apart from record.lua, because a claim counts nothing.
--@include outcome
--@include record

-- Raise a counter in `meta`, after everything is written.
-- A counter that somebody garbled begins anew: nothing may fail after the first write.
local function count_up(counter, times)
  if type(redis.pcall('HINCRBY', meta, counter, times)) == 'table' then redis.call('HSET', meta, counter, times) end
end

-- The fields of `meta` that count runs by how they ended.
local COUNTERS = {[FAILED] = 'failed', [SUCCEEDED] = 'succeeded', [SKIPPED] = 'skipped', [CANCELLED] = 'cancelled'}

-- The record with so many more runs counted.
local function counted(record, succeeded, failed, attempts)
  if not is_readable(record) then return record end
  local s, f, a = struct.unpack('>I4I4I4', record, 28)
  return sub(record, 1, 27) .. struct.pack('>I4I4I4', s + succeeded, f + failed, a + attempts) .. sub(record, 40)
end
