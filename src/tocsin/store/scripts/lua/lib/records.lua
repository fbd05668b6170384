-- records: the fixed header of a record. model/record.py has the same layout.
--  1 schema, 1  2 flags  3 band  4 cost u16  6 timeout ms u32  10 keep s u32  14 version u48
-- 20 handler u32  24 trigger u32  28 succeeded u32  32 failed u32  36 attempts u32  40 tenant
-- Flags: 1 recurring, 2 nobody chose its id.

-- Each run comes by: a local is found much sooner than a function of a global.
local byte, sub = string.byte, string.sub

-- In `results` instead of what came of a job that is only remembered because others wait for it. No msgpack has it.
-- With a text behind it: what the job returned was lost, and why.
local NOT_KEPT = '\193'

local function is_kept(result) return not result or string.sub(result, 10) ~= NOT_KEPT end

local function readable(record)
  return record and #record > 40 and byte(record) == 1
end

local function is_recurring(record) return string.byte(record, 2) % 2 == 1 end
local function is_unnamed(record) return byte(record, 2) % 4 >= 2 end
local function timeout_of(record) return (struct.unpack('>I4', record, 6)) end
local function keep_of(record) return (struct.unpack('>I4', record, 10)) end
local function version_of(record) return (struct.unpack('>I6', record, 14)) end
local function handler_of(record) return (struct.unpack('>I4', record, 20)) end
local function band_of(record) return math.min(string.byte(record, 3), 4) end
local function cost_of(record) return (struct.unpack('>I2', record, 4)) end
local function tenant_of(record) return string.sub(record, 41, 40 + string.byte(record, 40)) end
local function trigger_of(record) return (struct.unpack('>I4', record, 24)) end

local function with_version(record, number)
  return string.sub(record, 1, 13) .. struct.pack('>I6', number) .. string.sub(record, 20)
end

-- Counters as they stand in a record, and with more of each.
local function counts_of(record) return sub(record, 28, 39) end
local function with_counts(record, counts) return sub(record, 1, 27) .. counts .. sub(record, 40) end
local function more_counts(counts, succeeded, failed, attempts)
  local s, f, a = struct.unpack('>I4I4I4', counts)
  return struct.pack('>I4I4I4', s + succeeded, f + failed, a + attempts)
end

local function with_counts_of(record, old)
  if not readable(old) then return record end
  return with_counts(record, counts_of(old))
end

local function counted(record, succeeded, failed, attempts)
  if not readable(record) then return record end
  return with_counts(record, more_counts(counts_of(record), succeeded, failed, attempts))
end

-- A one-shot of its own with the same body: not recurring, nothing counted, not remembered.
local function as_extra(record)
  return string.sub(record, 1, 1) .. string.char(0) .. string.sub(record, 3, 9) .. struct.pack('>I4', 0)
    .. string.sub(record, 14, 27) .. struct.pack('>I4I4I4', 0, 0, 0) .. string.sub(record, 40)
end
