-- mend_each: try a repair on each of the named jobs. Returns a text with a digit for each, 0 left alone or 1 mended,
-- and the jobs that were mended. Apart from audit.lua, because audit_mend is near the limit of locals.
local function mend_each(named, repair)
  local codes, mended = {}, {}
  for i, id in ipairs(named) do
    codes[i] = '0'
    if repair(id) then
      codes[i] = '1'
      mended[#mended + 1] = id
    end
  end
  return table.concat(codes), mended
end
