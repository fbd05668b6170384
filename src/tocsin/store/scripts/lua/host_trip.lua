-- host_trip: a host fails, so that no worker sends to it for a while. A host that is known to fail stays as it is until
--        its time is over, unless this is the probe that was let through last. Safe to repeat.
-- KEYS   hosts, outages
-- ARGV   clock, host, cooldown, probe ('': none), most: how many hosts are kept
-- RETURN when it may be probed, ms
--@include time
--@include outage
local now = read_time()
local known = outage_of(host)
if known and known.until_ms > now and (probe == '' or probe ~= known.probe) then return known.until_ms end
-- Drop hosts that no request has asked for since; if there are still too many, the one that may be probed soonest.
local long_ago = now - 600000
local gone = redis.call('ZRANGEBYSCORE', hosts, '-inf', string.format('%.0f', long_ago), 'LIMIT', 0, 100)
if not known and redis.call('ZCARD', hosts) - #gone >= tonumber(most) then
  gone[#gone + 1] = redis.call('ZRANGE', hosts, #gone, #gone)[1]
end
local since = known and known.until_ms > long_ago and known.since or string.format('%.0f', now)
if #gone > 0 then
  redis.call('ZREM', hosts, unpack(gone))
  redis.call('HDEL', outages, unpack(gone))
end
note_outage(host, now + cooldown, since, '')
return now + cooldown
