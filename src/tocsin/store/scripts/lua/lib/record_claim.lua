-- record_claim: what a claim reads of a record, and handler digests. The layout is in record.lua.
-- Apart from that file, because the fast paths do without.
--@include record

local function handler_of(record) return (struct.unpack('>I4', record, HANDLER_FROM)) end
local function timeout_of(record) return (struct.unpack('>I4', record, TIMEOUT_FROM)) end
local function cost_of(record) return (struct.unpack('>I2', record, 4)) end

-- A handler's digest, as a number and as the bytes of a record and of the caller's list of handlers.
local function digest_bytes(digest) return struct.pack('>I4', digest) end
local function digest_at(bytes, at) return (struct.unpack('>I4', bytes, at)) end
