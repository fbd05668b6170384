-- store_record: store a record with all the successes that it does not count yet (uncounted_due.lua).
--@include counts

-- `from`: the job's claim, or its entry in line if it has no claim. It is emptied, so write the claim after this.
local function with_uncounted(record, from)
  local uncounted = math.floor(from.place / 256)
  if uncounted == 0 then return record end
  from.place = 0
  return counted(record, uncounted, 0, uncounted)
end

-- `stored`: the record as it stands in Redis, if the caller has read it: an equal one is not written again.
local function store_record(id, record, from, stored)
  record = with_uncounted(record, from)
  if record ~= stored then set(jobs, id, record) end
end
