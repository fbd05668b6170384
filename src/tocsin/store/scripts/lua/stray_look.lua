-- stray_look: a page of what waits or works, of which only those are told that look wrong. Changes nothing.
-- KEYS   jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        working   ZSET    id -> deadline ms
--        claims    HASH    id -> claim
-- ARGV   clock, stage, cursor, overdue, limit
--        stage: waiting or working; cursor: of ZSCAN, '0' to begin; overdue: how many ms past its deadline a run
--        must be to be told, '' for none
-- RETURN {cursor, [id]…, kinds}: '0' when the walk is over; a digit per id: 1 it has no record, and nobody holds it;
--        2 its score is none of ours; 3 overdue; 4 overdue, and its claim cannot be read
-- USES   now, claims, apart, scores
local works = stage == 'working'
local late = works and overdue ~= '' and now - tonumber(overdue) or -math.huge

local function claim_of(id)
  local raw = redis.call('HGET', claims, id)
  if not raw then return nil, true end
  local fine, claim = pcall(read_claim, raw)
  return fine and claim or nil, fine
end

local function is_held(id)
  local claim = claim_of(id)
  return claim and claim.token > 0
end

local function kind_of(id, score)
  -- Whoever holds a run without a record ends it in its time.
  if redis.call('HEXISTS', jobs, id) == 0 and not (works and is_held(id)) then return '1' end
  if is_odd(score, now) and (works or not is_suspects(score, claim_of(id))) then return '2' end
  if score > late then return nil end
  local _, fine = claim_of(id)
  return fine and '3' or '4'
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
