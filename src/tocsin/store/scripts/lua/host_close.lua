-- host_close: tell the fleet that a host answers again, if that was found in the outage that is still known. Also of a probe
-- that was answered late: others may have been let through since, and a host that takes its time would stay closed out.
-- KEYS   hosts     ZSET    host -> nobody sends to it before ms
--        outages   HASH    host -> since ms, and the probe that was let through last
-- ARGV   host, since
-- RETURN 1 it is over, 0 there is no such outage
-- USES   outage
local known = outage_of(host)
if not known or known.since ~= since then return 0 end
redis.call('ZREM', hosts, host)
redis.call('HDEL', outages, host)
return 1
