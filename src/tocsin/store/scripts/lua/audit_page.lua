-- audit_page: a page of one of the keys that have jobs, and of it the ids that have no record. Changes nothing.
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
-- ARGV   number, cursor, limit: which of the keys, from 1 on, in the order of lib/members.lua; the cursor of SCAN, '0' to
--        begin
-- RETURN {cursor, [id]…, looked}: '0' when the walk is over; how many ids the page had
-- USES   members, places
local key = HASHES[tonumber(number)] or ZSETS[tonumber(number) - #HASHES]
local scan = tonumber(number) <= #HASHES and 'HSCAN' or 'ZSCAN'
local page = redis.call(scan, key, cursor, 'COUNT', math.min(tonumber(limit), 1000))
local ids = {}
for at = 1, #page[2], 2 do
  if redis.call('HEXISTS', jobs, page[2][at]) == 0 then ids[#ids + 1] = page[2][at] end
end
return {page[1], ids, #page[2] / 2}
