-- mend_each: try a repair on each of the named jobs: a text with a digit for each, 0 left alone or 1 mended, and those
-- mended.
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
