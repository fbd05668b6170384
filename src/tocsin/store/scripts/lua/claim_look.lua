-- claim_look: find the runs of some owners in a page of `working`. Changes nothing.
-- KEYS   working, claims
-- ARGV   cursor, limit, names: of ZSCAN, '0' to begin; how many to look at, about; msgpack [owner] * n
-- RETURN {cursor, [id, token, owner]…}: '0' when the walk is over
--@include record
--@include claim_fields
local wanted, found = {}, {}
for _, name in ipairs(cmsgpack.unpack(names)) do wanted[name] = true end
local page = redis.call('ZSCAN', working, cursor, 'COUNT', math.min(tonumber(limit), 1000))
for at = 1, #page[2], 2 do
  local claim = claim_if_readable(redis.call('HGET', claims, page[2][at]))
  if claim and claim.token > 0 and wanted[claim.owner] then
    found[#found + 1] = page[2][at]
    found[#found + 1] = claim.token
    found[#found + 1] = claim.owner
  end
end
return {page[1], found}
