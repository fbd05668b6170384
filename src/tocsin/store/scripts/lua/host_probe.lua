-- host_probe: ask whether to send one request to a host that failed. The first to ask when its time is over may, and the
-- others have to wait until that one should have been answered. Asked again after a lost reply it answers the same.
-- KEYS   hosts     ZSET    host -> nobody sends to it before ms
--        outages   HASH    host -> since ms, and the probe that was let through last
-- ARGV   clock, host, probe, half open
-- RETURN {1 go or 0 wait, until ms, since}; {2}: it does not fail any more
-- USES   now, outage
local known = outage_of(host)
if not known then return {2} end
if known.until_ms > now then return {known.probe == probe and 1 or 0, known.until_ms, known.since} end
note_outage(host, now + half_open, known.since, probe)
return {1, now + half_open, known.since}
