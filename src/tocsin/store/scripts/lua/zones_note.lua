-- zones_note: note by which version of the zone database the jobs are planned.
-- KEYS   zones
-- ARGV   version
-- RETURN 1
-- The removal comes first, so that it passes on a full server: otherwise the leader would plan all jobs again and
-- again.
redis.call('DEL', zones)
redis.call('SET', zones, version)
return 1
