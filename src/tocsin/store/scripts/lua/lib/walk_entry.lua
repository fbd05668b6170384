-- walk_entry: the walk for the largest record as `meta` keeps it (widest.lua).

-- Whose walk it is, cursor and size; nil if there is none.
local function walk_of(text)
  local whose, cursor, size = string.match(text or '', '^(.*):(%d+):(%d+)$')
  return whose, cursor, tonumber(size or nil)
end

local function walk_text(whose, cursor, size) return string.format('%s:%s:%.0f', whose, cursor, size) end
