-- record_fields: what the end of a run reads of a record. The layout is in record.lua.
--@include record
local function is_recurring(record) return byte(record, 2) % 2 == 1 end
local function is_unnamed(record) return byte(record, 2) % 4 >= 2 end
local function keep_of(record) return (struct.unpack('>I4', record, 10)) end

-- The record with the counts of another one.
local function with_counts_of(record, old)
  if not is_readable(old) then return record end
  return sub(record, 1, 27) .. sub(old, 28, 39) .. sub(record, 40)
end
