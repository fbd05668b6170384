-- store_record: as store_record_due.lua. In ordered queues records have counted all.
local function with_uncounted(record, from) return record end
local function store_record(id, record, from, stored)
  if record ~= stored then set(jobs, id, record) end
end
