-- repartition_page: some of the ids in one of the keys that have jobs. Changes nothing.
-- KEYS   jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed, blocked, needs
-- ARGV   number, cursor, limit: which of the keys, from 1 on; the cursor of SCAN, '0' to begin
-- RETURN {cursor, [id]…, more}: '0' when the walk is over; more is 1 if there is a key after this one
--@include moved_keys
local hashes, zsets = moved_hashes(), moved_zsets()
local key = hashes[tonumber(number)] or zsets[tonumber(number) - #hashes]
local scan = tonumber(number) <= #hashes and 'HSCAN' or 'ZSCAN'
local page = redis.call(scan, key, cursor, 'COUNT', math.min(tonumber(limit), 1000))
local ids = {}
for at = 1, #page[2], 2 do ids[#ids + 1] = page[2][at] end
return {page[1], ids, tonumber(number) < #hashes + #zsets and 1 or 0}
