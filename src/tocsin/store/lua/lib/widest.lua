-- widest: bytes of the largest record that the partition may hold. Claims and audits read so many records together that
-- they stay within bounds even if all are as large.

-- From here on fewer than 1000 are read together (at_once in take.lua).
local WIDE = 4096

-- `size`: of the largest record that this call has put; `fresh`: how many jobs it added. A partition that holds nothing
-- else has forgotten what was larger.
local function remember_widest(size, fresh)
  local before = tonumber(redis.call('HGET', meta, 'widest') or 0)
  if size > before or before > WIDE and fresh > 0 and redis.call('HLEN', jobs) == fresh then
    redis.call('HSET', meta, 'widest', size)
  end
end
