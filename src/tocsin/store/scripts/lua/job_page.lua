-- job_page: look at a page of one of the sets that have jobs, in order, and name those that match. Changes nothing.
-- KEYS   jobs, claims, waiting, working, blocked, paused, parked, dead, ready0, ready1, ready2, ready3, ready4
-- ARGV   number, score, member, limit, handler, tenant, due before, due after: which of the sets, from 1 on; the
--        member that was looked at last and its score, '' to begin; at most 1000; the rest '' for any
-- RETURN {[id, score]…, looked, score, member}: those that match; how many were looked at, fewer than the limit if
--        their records are large; the last of them, '' if there is none after it
--@include record_claim
--@include record_line
--@include claim_fields
--@include score_parts

-- The id that a member of any `ready`, or of another set of jobs, names: it is the id itself but in fair queues. And
-- the due time that it names there (tenant.lua).
local function id_in_line(member) return string.match(member, '^[^%z]*%z%d+%z%d+%z(.*)$') or member end
local function due_in_member(member) return tonumber(string.match(member, '^[^%z]*%z(%d+)%z') or nil) end

local line = ({waiting, working, blocked, paused, parked, dead, unpack(READY, 0, 4)})[tonumber(number)]
local digest, before, after = tonumber(handler), tonumber(due_before), tonumber(due_after)
local reads_records, reads_dues = digest or tenant ~= '', before or after
local AT_ONCE, MOST_BYTES = 8, 4 * 1024 * 1024
limit = math.min(tonumber(limit), 1000)

-- If the member that was looked at last is gone, the page begins with the first of its score.
local is_gone = false
local function first_rank()
  if score == '' then return 0 end
  local stands_at = redis.call('ZSCORE', line, member)
  if stands_at and tonumber(stands_at) == tonumber(score) then return redis.call('ZRANK', line, member) + 1 end
  is_gone = true
  return redis.call('ZCOUNT', line, '-inf', '(' .. score)
end

-- As the server orders members of one score: by bytes, while Lua compares strings by the locale.
local function was_looked_at(name, at)
  if not is_gone or tonumber(at) ~= tonumber(score) then return false end
  for i = 1, math.min(#name, #member) do
    if byte(name, i) ~= byte(member, i) then return byte(name, i) < byte(member, i) end
  end
  return #name <= #member
end

local function due_of(name, at, raw)
  return due_of_claim(raw) or due_in_member(name) or (split_score(tonumber(at)))
end

local function fits(record, due)
  if reads_records then
    if not is_readable(record) then return false end
    if digest and handler_of(record) ~= digest or tenant ~= '' and tenant_of(record) ~= tenant then return false end
  end
  return not (before and due >= before or after and due < after)
end

local start = first_rank()
local page = redis.call('ZRANGE', line, start, start + limit - 1, 'WITHSCORES')
local found, looked, bytes = {}, 0, 0

local function look_at(first, to)
  local ids = {}
  for i = first, to do ids[i - first + 1] = id_in_line(page[2 * i - 1]) end
  local records = reads_records and redis.call('HMGET', jobs, unpack(ids)) or {}
  local raws = reads_dues and redis.call('HMGET', claims, unpack(ids)) or {}
  for n, id in ipairs(ids) do
    local name, at = page[2 * (first + n) - 3], page[2 * (first + n) - 2]
    bytes = bytes + #(records[n] or '')
    if not was_looked_at(name, at) and fits(records[n], reads_dues and due_of(name, at, raws[n])) then
      found[#found + 1], found[#found + 2] = id, at
    end
  end
  looked = to
end

for first = 1, #page / 2, AT_ONCE do
  if bytes >= MOST_BYTES then break end
  look_at(first, math.min(first + AT_ONCE - 1, #page / 2))
end
if looked < limit and looked == #page / 2 then return {found, looked, '', ''} end
return {found, looked, page[2 * looked], page[2 * looked - 1]}
