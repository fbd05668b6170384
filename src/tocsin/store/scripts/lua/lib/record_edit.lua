-- record_edit: read, compare and change the records of jobs. The layout is in record.lua.
-- Apart from that file, because the fast paths do without.
--@include record

local function is_recurring(record) return byte(record, 2) % 2 == 1 end
local function is_unnamed(record) return byte(record, 2) % 4 >= 2 end
local function keep_of(record) return (struct.unpack('>I4', record, 10)) end

-- The record with the counts of another one.
local function with_counts_of(record, old)
  if not is_readable(old) then return record end
  return sub(record, 1, 27) .. sub(old, 28, 39) .. sub(record, 40)
end

local function version_of(record) return (struct.unpack('>I6', record, 14)) end
local function trigger_of(record) return (struct.unpack('>I4', record, 24)) end

local function with_version(record, number)
  return sub(record, 1, 13) .. struct.pack('>I6', number) .. sub(record, 20)
end

-- Whether two records say the same but for their version and their counts.
local function is_same_definition(one, other)
  return sub(one, 40) == sub(other, 40) and sub(one, 2, 13) == sub(other, 2, 13)
    and sub(one, 20, 27) == sub(other, 20, 27)
end
