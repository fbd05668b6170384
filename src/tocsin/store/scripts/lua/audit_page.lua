-- audit_page: a page of one of the keys that have jobs, and of it the ids that have no record. Changes nothing.
-- KEYS   jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed, blocked, needs
-- ARGV   number, cursor, limit: which of the keys, from 1 on, in the order of lib/moved_keys_due.lua; the cursor of
--        SCAN, '0' to begin
-- RETURN {cursor, [id]…, looked}: '0' when the walk is over; how many ids the page had
--@include moved_keys
local hashes, zsets = moved_hashes(), moved_zsets()
local key = hashes[tonumber(number)] or zsets[tonumber(number) - #hashes]
local scan = tonumber(number) <= #hashes and 'HSCAN' or 'ZSCAN'
local page = redis.call(scan, key, cursor, 'COUNT', math.min(tonumber(limit), 1000))
local ids = {}
for at = 1, #page[2], 2 do
  if redis.call('HEXISTS', jobs, page[2][at]) == 0 then ids[#ids + 1] = page[2][at] end
end
return {page[1], ids, #page[2] / 2}
