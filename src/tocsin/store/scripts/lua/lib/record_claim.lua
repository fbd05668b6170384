-- record_claim: what a claim reads of a record. The layout is in record.lua.
--@include record
local function handler_of(record) return (struct.unpack('>I4', record, HANDLER_FROM)) end
local function timeout_of(record) return (struct.unpack('>I4', record, TIMEOUT_FROM)) end
local function cost_of(record) return (struct.unpack('>I2', record, 4)) end
