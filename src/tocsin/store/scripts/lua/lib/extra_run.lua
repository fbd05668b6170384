-- extra_run: the ids and the records of extra runs of a job. parent_of in settle.lua finds the job of such an id.
-- Apart from that file, because run_finish is near the limit of locals.
--@include record

-- The id: that of the job, a unit separator, the due time. The run that replaces others has 0 in place of the due time
-- (run_plan).
local function extra_run_id(id, due) return id .. '\31' .. string.format('%.0f', due) end
local function sole_run_id(id) return id .. '\31' .. '0' end

-- A one-shot with the same body: it does not recur, has counted nothing, and is not remembered.
local function as_extra_run(record)
  return sub(record, 1, 1) .. '\0' .. sub(record, 3, 9) .. struct.pack('>I4', 0) .. sub(record, 14, 27)
    .. struct.pack('>I4I4I4', 0, 0, 0) .. sub(record, 40)
end
