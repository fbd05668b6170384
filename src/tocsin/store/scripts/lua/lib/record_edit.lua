-- record_edit: compare and change records. The layout is in record.lua.
--@include record
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

-- A one-shot with the same body: it does not recur, has counted nothing, and is not remembered.
local function as_extra_run(record)
  return sub(record, 1, 1) .. '\0' .. sub(record, 3, 9) .. struct.pack('>I4', 0) .. sub(record, 14, 27)
    .. struct.pack('>I4I4I4', 0, 0, 0) .. sub(record, 40)
end
