-- bell_take: hear all bells at once, so that no queue's waits behind those of others. At most 1000.
-- KEYS   bells*    LIST    one for each queue: partitions with work
-- RETURN {which, partition, …}: of each that rang, the number of its key, from 1, and the partition
local rung = {}
for which, bell in ipairs(bells) do
  -- A table is an error: somebody garbled the bell. The others are heard.
  local partition = redis.pcall('LPOP', bell)
  while partition and type(partition) ~= 'table' do
    rung[#rung + 1], rung[#rung + 2] = which, partition
    if #rung >= 2000 then return rung end
    partition = redis.call('LPOP', bell)
  end
end
return rung
