-- now: the server's time in ms, or the one that a test gives.
local now = tonumber(clock)
if clock == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
