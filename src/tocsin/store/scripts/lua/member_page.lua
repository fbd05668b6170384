-- member_page: some of the ids in one of the keys that have jobs. Changes nothing.
-- KEYS   jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
--        paused    ZSET    id -> not before ms
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        dead      ZSET    id -> since ms
--        errors    HASH    id -> last failure
--        done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
--        blocked   ZSET    id -> not before ms
--        needs     HASH    id -> what it waits for
-- ARGV   number, cursor, limit: which of the keys, from 1 on; the cursor of SCAN, '0' to begin
-- RETURN {cursor, [id]…, more}: '0' when the walk is over; more is 1 if there is a key after this one
-- USES   members, places
local key = HASHES[tonumber(number)] or ZSETS[tonumber(number) - #HASHES]
local scan = tonumber(number) <= #HASHES and 'HSCAN' or 'ZSCAN'
local page = redis.call(scan, key, cursor, 'COUNT', math.min(tonumber(limit), 1000))
local ids = {}
for at = 1, #page[2], 2 do ids[#ids + 1] = page[2][at] end
return {page[1], ids, tonumber(number) < #HASHES + #ZSETS and 1 or 0}
