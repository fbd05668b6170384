-- time: the server's time, or the one that a test gives as `clock`, in milliseconds and in microseconds.
local function read_time()
  if clock ~= '' then return tonumber(clock), tonumber(clock) * 1000 end
  local time = redis.call('TIME')
  local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
  return math.floor(micros / 1000), micros
end
