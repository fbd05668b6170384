-- job_fire: add extra runs of a job, one-shots of their own, without touching its cadence.
-- KEYS   meta, sessions, jobs, waiting, claims, events
-- ARGV   epoch, clock, session, seq, id, dues: msgpack [due ms, 0 for now] * n
-- RETURN {1, code, dues, head}: code 0 no such job, 1 fired; the due of each run that was added
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include counts
--@include order
--@include line_entry
--@include claim_intents
--@include record_edit
--@include store_again
--@include extra_run
local record = redis.call('HGET', jobs, id)
local claim = claim_if_readable(redis.call('HGET', claims, id))
if not is_readable(record) or (claim and has(claim.intent, REMOVE)) then return unchanged(call, {1, 0, {}, -1}) end
local extra = with_version(as_extra_run(record), call.version)
local added, members, adding = {}, {}, {}

-- The run that the job itself is about to have, or has.
local entry = line_entry_of(id)
local own = claim and (entry or claim.token > 0) and claim.due or entry and entry.due

-- The run that replaces others (run_plan) has an id without its time.
local sole = sole_run_id(id)
local sole_claim, sole_entry = claim_if_readable(redis.call('HGET', claims, sole)), line_entry_of(sole)
local sole_due = sole_claim and sole_claim.due or sole_entry and sole_entry.due
-- And the one that follows it, if it is being replaced.
local sole_next = sole_claim and sole_claim.put_due

local function is_there(member, due)
  return due == own or due == sole_due or due == sole_next or adding[member] or redis.call('HEXISTS', jobs, member) == 1
end

local function is_taken(due) return is_there(extra_run_id(id, due), due) end

-- A millisecond from `from` on that no run of the job has. Runs that were fired together have consecutive ones, so
-- steps that double find a free millisecond, and halving them finds the first.
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
  local member = extra_run_id(id, due)
  if not is_there(member, due) then
    adding[member] = true
    set(jobs, member, extra)
    enter_line(member, due, nil, extra)
    added[#added + 1] = due
    members[#members + 1] = member
  end
end
local reply = {1, 1, added, added[1] and now or -1}
if #added == 0 then return unchanged(call, reply) end
store_again(extra)
write_all({jobs})
count_up('put', #added)
return commit(call, reply, 'fire', members)
