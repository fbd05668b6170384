-- bell_take: take what rang in all bells, at most 1000. A call for each queue would let one wait behind another.
-- KEYS   bells*
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
