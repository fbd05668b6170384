-- record: the header of a record. Only this file, the others whose names begin with `record`, counts.lua,
-- extra_run.lua and claim_batch.lua count its bytes; model/record.py has the same layout. The numbers are where each
-- field begins.
--    1 schema, always 1     2 flags            3 band             4 cost u16       6 timeout ms u32  10 keep s u32
--   14 version u48         20 handler u32     24 trigger u32     28 succeeded u32  32 failed u32     36 attempts u32
--   40 size of the tenant, then the tenant
-- Flags: 1 the job recurs, 2 its id was generated.

-- Hot loops use these names: a local is found much sooner than a function of a global.
local byte, sub = string.byte, string.sub

-- Where the bytes of the timeout and of the handler's digest begin and end, for loops over a batch.
local TIMEOUT_FROM, TIMEOUT_TO, HANDLER_FROM, HANDLER_TO = 6, 9, 20, 23

-- Records of more bytes are large: fewer than 1000 of them are read together.
local WIDE = 4096

local function is_readable(record) return record and #record > 40 and byte(record) == 1 end
