-- host_close: a host answers again; end its outage, if it is still the one that the caller saw. The answer to a probe
--        counts even if it is late: others may have been let through since, and a slow host would never be reached
--        again.
-- KEYS   hosts, outages
-- ARGV   host, since
-- RETURN 1 it is over, 0 the host has no such outage
--@include outage
local known = outage_of(host)
if not known or known.since ~= since then return 0 end
redis.call('ZREM', hosts, host)
redis.call('HDEL', outages, host)
return 1
