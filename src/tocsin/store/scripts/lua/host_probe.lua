-- host_probe: ask to send one request to a host that failed. The first caller after its time is over may, and the
--        others wait until that request should have been answered. Asked again after a lost reply it answers the same.
-- KEYS   hosts, outages
-- ARGV   clock, host, probe, half open
-- RETURN {1 go or 0 wait, until ms, since}; {2}: it does not fail any more
--@include time
--@include outage
local now = read_time()
local known = outage_of(host)
if not known then return {2} end
if known.until_ms > now then return {known.probe == probe and 1 or 0, known.until_ms, known.since} end
note_outage(host, now + half_open, known.since, probe)
return {1, now + half_open, known.since}
