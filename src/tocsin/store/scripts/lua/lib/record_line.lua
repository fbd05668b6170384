-- record_line: the fields of a record that decide when it is served in an ordered queue. The layout is in record.lua.
-- Apart from that file, because queues of order `due` do without.
--@include record
local function band_of(record) return math.min(byte(record, 3), 4) end
local function tenant_of(record) return sub(record, 41, 40 + byte(record, 40)) end
