-- job_fire: add extra runs of a job, one-shots of their own, without touching its cadence.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        jobs      HASH    id -> record
--        waiting   ZSET    id -> not before ms
--        claims    HASH    id -> claim
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, id, dues: msgpack [due ms, 0 for now] * n
-- RETURN {1, code, dues, head}: code 0 no such job, 1 fired; the due of each run that was added
-- USES   call, records, claims, moves, line, widest
if answered then return answered end
local record = redis.call('HGET', jobs, id)
local claim = claim_if_readable(redis.call('HGET', claims, id))
if not readable(record) or (claim and has(claim.intent, REMOVE)) then return unchanged({1, 0, {}, -1}) end
local extra = with_version(as_extra(record), version)
local added, members, adding = {}, {}, {}

-- The run that the job itself is about to have, or has.
local spot = spot_of(id)
local own = claim and (spot or claim.token > 0) and claim.due or spot and spot.due

-- The one that replaces others (run_plan) has a name without its time.
local sole = id .. '\31' .. '0'
local sole_claim, sole_spot = claim_if_readable(redis.call('HGET', claims, sole)), spot_of(sole)
local sole_due = sole_claim and sole_claim.due or sole_spot and sole_spot.due
-- And the one that follows it, if it is being replaced.
local sole_next = sole_claim and sole_claim.put_due

local function is_there(member, due)
  return due == own or due == sole_due or due == sole_next or adding[member] or redis.call('HEXISTS', jobs, member) == 1
end

local function name_at(due) return id .. '\31' .. string.format('%.0f', due) end
local function is_taken(due) return is_there(name_at(due), due) end

-- A millisecond from `from` on that no run of the job has. Runs that were fired together have one after the other, so
-- steps that double find one that is free, and halving them what stands next to a taken one.
local function free_from(from)
  if not is_taken(from) then return from end
  local taken, step = from, 1
  while is_taken(from + step) do
    taken, step = from + step, step * 2
  end
  local free = from + step
  while free - taken > 1 do
    local middle = math.floor((taken + free) / 2)
    if is_taken(middle) then taken = middle else free = middle end
  end
  return free
end

for _, due in ipairs(cmsgpack.unpack(dues)) do
  -- Two fires in one millisecond are two runs; the same past occurrence twice is one.
  if due == 0 then due = free_from(now) end
  local member = name_at(due)
  if not is_there(member, due) then
    adding[member] = true
    set(jobs, member, extra)
    enter_line(member, due, nil, extra)
    added[#added + 1] = due
    members[#members + 1] = member
  end
end
local reply = {1, 1, added, added[1] and now or -1}
if #added == 0 then return unchanged(reply) end
store_again(extra)
apply({jobs})
count_up('put', #added)
return commit(reply, 'fire', members)
