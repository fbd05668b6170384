-- widest: the size in bytes of the largest record that the partition may hold. Claims and audits read so many records
-- together that they stay within bounds even if all are as large.
-- A large record that is gone does not count for ever. While `widest` is large, each claim that finds something walks
-- over some more of the records (claim_again.lua; `walk` in `meta` says whose walk it is, its cursor, and the largest
-- size seen so far). When it has seen all, the largest of them is `widest`. The cursor may have passed the spot where a
-- record is stored, so scripts that store a large one update the walk.
--@include record

-- The walk as `meta` keeps it.
-- Whose walk it is, cursor and size; nil if there is none.
local function walk_of(text)
  local whose, cursor, size = string.match(text or '', '^(.*):(%d+):(%d+)$')
  return whose, cursor, tonumber(size or nil)
end

local function walk_text(whose, cursor, size) return string.format('%s:%s:%.0f', whose, cursor, size) end

-- `size`: of the largest record that this call has put; `fresh`: how many jobs it added. A partition that holds nothing
-- else has forgotten what was larger.
local function remember_widest(size, fresh)
  local before, walk = unpack(redis.call('HMGET', meta, 'widest', 'walk'))
  before = tonumber(before or 0) or 0
  if size > before or before > WIDE and fresh > 0 and redis.call('HLEN', jobs) == fresh then
    redis.call('HSET', meta, 'widest', size)
  end
  local whose, cursor, seen = walk_of(walk)
  if whose and size > WIDE and size > seen then redis.call('HSET', meta, 'walk', walk_text(whose, cursor, size)) end
end
