-- record_deadline: until when a claimed run has time. The layout is in record.lua.
--@include record

-- When a run that is claimed now must have ended, as text: by the caller's timeout, or else by that of its record.
local function deadline_of(batch, record)
  local given = tonumber(timeout)
  local bytes = sub(record, TIMEOUT_FROM, TIMEOUT_TO)
  local deadline = string.format('%.0f', now + (given > 0 and given or struct.unpack('>I4', bytes)))
  batch.deadlines[bytes] = deadline
  return deadline
end
