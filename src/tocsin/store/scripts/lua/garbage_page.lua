-- garbage_page: find entries that no version of Tocsin writes in a page of one key, and mend them if asked to: what is
--        unreadable goes, and what has an impossible time is due now. `garbled` is a hash or a sorted set, as `kind`
--        says.
-- KEYS   garbled
-- ARGV   clock, kind, cursor, limit, mends: kind: which of the checks below; cursor: of HSCAN or ZSCAN, '0' to begin;
--        mends: '1' or ''
-- RETURN {cursor, [entry]…, looked}: '0' when the walk is over; how many entries the page had
--@include time
--@include audit
--@include session_entry
--@include outcome_entry
local now = read_time()
-- Of a hash: whether a value can be read. Nothing here looks further than scripts and readers need.
local function is_list(value, least)
  local fine, list = pcall(cmsgpack.unpack, value)
  return fine and type(list) == 'table' and #list >= least
end
local HASHES = {
  ['results'] = is_outcome_entry,
  ['errors'] = function(value) return is_list(value, 1) end,
  ['needs'] = function(value) return is_list(value, 2) end,
  ['sessions'] = function(value) return read_session_entry(value) ~= nil end,
  ['tenants'] = is_tenant_state,
  ['weights'] = function(value) return (tonumber(value) or 0) > 0 and tonumber(value) < 1e300 end,
  ['outages'] = function(value) return string.find(value, '^%d+|') ~= nil end,
}

-- Of a sorted set: what its member or score should be, and the score that mends it; without one it goes.
local function is_time(_, score) return score >= 0 and score <= LATEST end
local SETS = {
  ['times'] = {is_time, now},
  -- Low scores in line are left to the cleanup (audit_mend_score.lua), because suspects have such scores.
  ['line'] = {function(_, score) return score >= LOWEST and score <= LATEST end, now},
  ['names'] = {function(_, score) return score == 0 end, 0},
  ['tags'] = {function(_, score) return score > -1e300 and score < 1e300 end},
  ['watchers'] = {is_watcher_entry},
  ['outbox'] = {is_outbox_entry},
}

local readable, set = HASHES[kind], SETS[kind]
local page = redis.call(readable and 'HSCAN' or 'ZSCAN', garbled, cursor, 'COUNT', math.min(tonumber(limit), 1000))
local garbage = {}
for at = 1, #page[2], 2 do
  local name, value = page[2][at], page[2][at + 1]
  local fine
  if readable then fine = readable(value) else fine = set[1](name, tonumber(value)) end
  if not fine then garbage[#garbage + 1] = name end
end
for _, name in ipairs(mends == '1' and garbage or {}) do
  -- The removal comes first, so that it passes on a full server.
  redis.call(readable and 'HDEL' or 'ZREM', garbled, name)
  if set and set[2] then redis.call('ZADD', garbled, string.format('%.0f', set[2]), name) end
end
return {page[1], garbage, #page[2] / 2}
