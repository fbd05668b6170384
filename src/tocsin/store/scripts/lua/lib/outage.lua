-- outage: what the fleet knows of a host that fails: in `hosts` the time before which nobody sends to it, in `outages`
-- since when it fails (ms), '|', and the probe that was let through last.
local function outage_of(host)
  local until_ms, raw = redis.call('ZSCORE', hosts, host), redis.call('HGET', outages, host)
  -- Tocsin closes no host beyond the year 9999. Such an entry is garbage: the host would never be probed.
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
