-- record_counts: count runs in a record. The layout is in record.lua.
--@include record
local function counted(record, succeeded, failed, attempts)
  if not is_readable(record) then return record end
  local s, f, a = struct.unpack('>I4I4I4', record, 28)
  return sub(record, 1, 27) .. struct.pack('>I4I4I4', s + succeeded, f + failed, a + attempts) .. sub(record, 40)
end
