-- claim_walk: look for the largest record of the partition, some records in each claim (widest.lua).
--@include wide
--@include walk_entry

-- The next steps of the walk: fields of `meta` that change, and their values. It reads some of what the claim has read,
-- `bytes`, but not much more than a large record: one at a time until they are seen to be small. A page of a hash that
-- was larger before may be empty, so the number of pages is bounded, too.
local function walk_on(bytes)
  -- Another server, or the same after a restart, has its records in another order; after a repartitioning they are
  -- others.
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
