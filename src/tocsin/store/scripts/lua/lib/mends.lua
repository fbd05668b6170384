-- mends: try a repair on each of the named ones. The answer has a digit for each: 0 left alone, 1 mended.
local function mend_each(named, repair)
  local codes, mended = {}, {}
  for i, id in ipairs(named) do
    codes[i] = '0'
    if repair(id) then
      codes[i] = '1'
      mended[#mended + 1] = id
    end
  end
  local reply = {1, table.concat(codes)}
  if #mended == 0 then return unchanged(reply) end
  apply()
  return commit(reply, 'mend', mended)
end
