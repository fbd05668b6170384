-- outage: what is known of a host that nobody sends to.
-- `outages` has since ms, '|', and the probe that was let through last.
local function outage_of(host)
  local until_ms, raw = redis.call('ZSCORE', hosts, host), redis.call('HGET', outages, host)
  -- Beyond the year 9999 nobody of ours closes a host: it would never be probed.
  if not until_ms or not raw or tonumber(until_ms) > 253402300799999 then return nil end
  local since, probe = string.match(raw, '^(%d+)|(.*)$')
  return {until_ms = tonumber(until_ms), since = since or '0', probe = probe or ''}
end

-- The removal comes first, so that it passes on a full server.
local function note_outage(host, until_ms, since, probe)
  redis.call('ZREM', hosts, host)
  redis.call('ZADD', hosts, string.format('%.0f', until_ms), host)
  redis.call('HSET', outages, host, since .. '|' .. probe)
end
