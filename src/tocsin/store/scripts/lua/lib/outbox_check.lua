-- outbox_check: whether members of `watchers` and `outbox` are as outbox_entry.lua says.
local function nuls_in(member) return select(2, string.gsub(member, '%z', '')) end

local function is_watcher_entry(member) return nuls_in(member) == 3 end

local function is_outbox_entry(member)
  if string.find(member, '^E%z') then return nuls_in(member) == 2 and string.find(member, '%z[0-3]$') ~= nil end
  return string.find(member, '^W%z') ~= nil and nuls_in(member) == 4
end
