-- widest: bytes of the largest record that the partition may hold. Claims and audits read so many records together that
-- they stay within bounds even if all are as large.
-- A large record that is gone does not count for ever. While `widest` is large, each claim that finds something walks
-- over some more of the records (`walk` in `meta`: whose it is, cursor, the largest seen so far), and when all were
-- seen, the largest of them is `widest`. A cursor may have passed when a record is stored: whoever stores a large one
-- tells the walk.

-- From here on fewer than 1000 are read together (at_once in take.lua).
local function is_wide(size) return size > 4096 end

-- Whose it is, cursor and size; nil if there is none.
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
  if size > before or is_wide(before) and fresh > 0 and redis.call('HLEN', jobs) == fresh then
    redis.call('HSET', meta, 'widest', size)
  end
  local whose, cursor, seen = walk_of(walk)
  if whose and is_wide(size) and size > seen then redis.call('HSET', meta, 'walk', walk_text(whose, cursor, size)) end
end

-- A record is stored that was put a while ago, or is the copy of one. The walk begins anew: that is rare, and simple.
local stored_again = 0
local function store_again(record)
  if not is_wide(#record) then return end
  drop(meta, 'walk')
  stored_again = math.max(stored_again, #record)
  if stored_again > tonumber(redis.call('HGET', meta, 'widest') or 0) then set(meta, 'widest', stored_again) end
end

-- The next steps of the walk: fields of `meta` that change, and their values. It reads some of what the claim has read,
-- `bytes`, but not much more than a large record: one at a time until they are seen to be small. A page of a hash that
-- was larger may be empty, so pages are bounded, too.
local function walk_on(bytes)
  -- Another server, or the same after a restart, has its records in another order; after a repartitioning they are others.
  local info = redis.pcall('INFO', 'server')
  local server = type(info) == 'string' and string.match(info, 'run_id:(%w+)')
  if not server then return end
  local whose, cursor, seen = walk_of(redis.call('HGET', meta, 'walk'))
  if whose ~= epoch .. ':' .. server then whose, cursor, seen = epoch .. ':' .. server, '0', 0 end
  local read, most, pages = 0, math.min(bytes, 65536) / 2 + 4096, 0
  repeat
    local page = redis.call('HSCAN', jobs, cursor, 'COUNT', pages == 0 and 1 or 8)
    cursor, pages = page[1], pages + 1
    for at = 2, #page[2], 2 do
      local size = #page[2][at]
      read, seen = read + size, math.max(seen, size)
    end
  until cursor == '0' or read >= most or pages == 32
  if cursor == '0' then return 'walk', '', 'widest', string.format('%.0f', seen) end
  return 'walk', walk_text(whose, cursor, seen)
end
