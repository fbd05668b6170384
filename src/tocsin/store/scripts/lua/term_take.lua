-- term_take: become the leader of cleanup if there is none, or stay it. Asked again after a lost reply it answers the
--        same.
-- KEYS   leader
-- ARGV   worker, ttl
-- RETURN {holder, ms that are left of its term}
local holder = redis.call('GET', leader)
if not holder then
  -- The removal comes first, so that it passes on a full server.
  redis.call('DEL', leader)
  redis.call('SET', leader, worker, 'PX', ttl)
  return {worker, tonumber(ttl)}
end
local left = redis.call('PTTL', leader)
-- Below 0 somebody set the key by hand, without an end. It gets one, or the term would never be over.
if holder == worker or left < 0 then
  -- Not SET, so that a leader stays one on a full server: what it does passes there too.
  redis.call('PEXPIRE', leader, ttl)
  left = tonumber(ttl)
end
return {holder, left}
