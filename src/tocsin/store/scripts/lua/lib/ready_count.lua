-- ready_count: how many jobs are in `ready`, in all bands.
local function ready_count()
  local count = 0
  for band = 0, 4 do count = count + redis.call('ZCARD', READY[band]) end
  return count
end
