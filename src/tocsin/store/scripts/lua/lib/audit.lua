-- audit: check whether Tocsin wrote a score or an entry, for scripts that look for garbage.
--@include score_parts

-- Which scores in `waiting` or `working` Tocsin writes. They are epoch milliseconds.
-- Below EARLIEST are negative numbers, and seconds: as seconds 10^10 is the year 2286, as milliseconds April 1970.
-- LATEST is the end of the year 9999: no time that a person can write is later.
local EARLIEST, CENTURY, LATEST = 10000000000, 3155760000000, 253402300799999
-- No suspect stands below it.
local LOWEST = -4503599627370496

-- Whether it is the score of a suspect that stands apart, and that of its run.
local function is_suspects_score(score, claim)
  local due, place = split_score(score)
  return score <= LAST_APART and claim and claim.recoveries > 1 and claim.due == due and place == 0
end

local function number_of(score) return tonumber(score) or math.huge end
local function is_foreign_score(score, now) return score < EARLIEST or score > now + CENTURY end

-- Whether this is an entry of `tenants` (tenant.lua).
local function is_tenant_state(raw) return #raw == 52 end

-- Whether members of `watchers` and `outbox` are as outbox.lua says.
local function nuls_in(member) return select(2, string.gsub(member, '%z', '')) end

local function is_watcher_entry(member) return nuls_in(member) == 3 end

local function is_outbox_entry(member)
  if string.find(member, '^E%z') then return nuls_in(member) == 2 and string.find(member, '%z[0-3]$') ~= nil end
  return string.find(member, '^W%z') ~= nil and nuls_in(member) == 4
end
