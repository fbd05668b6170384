-- audit_look_strays: find jobs that look wrong in a page of `waiting` or `working`. Changes nothing.
-- KEYS   jobs, waiting, working, claims
-- ARGV   clock, stage, cursor, overdue, limit
--        stage: waiting or working; cursor: of ZSCAN, '0' to begin; overdue: report runs that are so many ms past their
--        deadline, '' for none
-- RETURN {cursor, [id]…, kinds}: '0' when the walk is over; a digit per id: 1 it has no record, and no worker holds it;
--        2 Tocsin does not write such a score; 3 it is overdue; 4 it is overdue, and its claim is unreadable
--@include time
--@include record
--@include claim_fields
--@include audit
local now = read_time()
local works = stage == 'working'
local late = works and overdue ~= '' and now - tonumber(overdue) or -math.huge

local function claim_of(id)
  local raw = redis.call('HGET', claims, id)
  if not raw then return nil end
  return claim_if_readable(raw)
end

local function is_held(id)
  local claim = claim_of(id)
  return claim and claim.token > 0
end

local function kind_of(id, score)
  -- The worker that holds a run without a record ends it in its time.
  if redis.call('HEXISTS', jobs, id) == 0 and not (works and is_held(id)) then return '1' end
  if is_foreign_score(score, now) and (works or not is_suspects_score(score, (claim_of(id)))) then return '2' end
  if score > late then return nil end
  local _, is_garbage = claim_of(id)
  return is_garbage and '4' or '3'
end

local page = redis.call('ZSCAN', works and working or waiting, cursor, 'COUNT', math.min(tonumber(limit), 1000))
local ids, kinds = {}, {}
for at = 1, #page[2], 2 do
  local kind = kind_of(page[2][at], number_of(page[2][at + 1]))
  if kind then
    ids[#ids + 1] = page[2][at]
    kinds[#kinds + 1] = kind
  end
end
return {page[1], ids, table.concat(kinds)}
