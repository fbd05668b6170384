-- session: how a changing script begins and ends.
--
-- A call names the epoch of the partition, a session, and a seq that grows with each call of the session. A wrong epoch
-- (the server was wiped, restored or replaced) or a sealed partition is answered {-1, epoch}; a seq lower than the last
-- one is answered {-2}. Neither changes anything. The same seq again gets the same answer, so a call whose reply was
-- lost can be sent again.
--@include time
--@include session_entry

-- Doubles count exactly up to here, so Tocsin never writes a greater number.
local GREATEST = 9007199254740992

-- The state of this call. The scripts name it `call`, and the libraries that they include below use it by that name.
--   refused, answered   what to answer at once: the call is refused, or it was answered before
--   now, micros         the time; `now_text` is `now` as Redis reads it
--   token, version      both grow with each call; the same token and version for all that one call changes
--   every, burst, spent the queue's rate (rate.lua); `every` is nil without one
--   writes              what is to be written (writes.lua)
--   skips, notes        what the event of the call says beside its ids (events.lua)
--   carry               1 once the outbox has something to carry (dependencies.lua)
local function begin_call()
  local now, micros = read_time()
  -- One command for what any script needs, because a command costs far more than a field.
  local stored = redis.call('HMGET', meta, 'epoch', 'sealed', 'seq', 'fence', 'every', 'burst', 'spent')
  if stored[1] ~= epoch or stored[2] then return {refused = {-1, stored[1] or ''}} end
  local number = tonumber(seq)
  local last, _, answer = read_session_entry(redis.call('HGET', sessions, session), number)
  if last and last > number and last < GREATEST then return {refused = {-2}} end
  local fence, calls = tonumber(stored[4] or 0), tonumber(stored[3] or 0)
  -- Garbage in these fields begins anew: tokens still grow with the time, and versions go on from a number that none
  -- has reached.
  if not (fence and fence < GREATEST) then fence = 0 end
  if not (calls and calls >= 0 and calls < GREATEST) then calls = now end
  return {
    answered = answer, now = now, micros = micros, now_text = string.format('%.0f', now), seq = number,
    session = session, token = math.max(fence + 1, micros), version = calls + 1,
    every = tonumber(stored[5]), burst = tonumber(stored[6]) or 0, spent = tonumber(stored[7]) or 0,
    writes = {leaving = {}, entering = {}, setting = {}, dropping = {}}, skips = {}, notes = {}, carry = 0,
  }
end

-- End a call that changed nothing. Its seq is kept even so: a late copy of the call, which may find something to do,
-- must stay refused. The removal comes first, so that it passes on a full server.
local function unchanged(call, reply)
  redis.call('HDEL', sessions, session)
  redis.call('HSET', sessions, session, pack_session_entry(call.seq, call.now, reply))
  return reply
end

-- End a call that changed something: keep its answer, count it, append its event.
--   ids   the jobs that changed: a list, or that list in msgpack
--   runs  where attempts ended: an entry of event_run (events.lua) for each of the ids
--   ...   fields of `meta` that change with the call, and their values
-- The stream of events is bounded by count and, as if all events were as large as this one, by bytes. A reader sees a
-- gap in their seq.
local function commit(call, reply, kind, ids, runs, ...)
  -- As text: Redis 7.2.4 turns some whole numbers into 1e+9, which does not parse as an integer.
  local number = string.format('%.0f', call.version)
  redis.call('HSET', meta, 'seq', number, 'fence', string.format('%.0f', call.token), ...)
  redis.call('HSET', sessions, session, pack_session_entry(call.seq, call.now, reply))
  local named, ended = type(ids) == 'string' and ids or cmsgpack.pack(ids), runs and table.concat(runs) or ''
  local passed = call.skips[1] and cmsgpack.pack(call.skips) or ''
  local noted = call.notes[1] and cmsgpack.pack(call.notes) or ''
  local most = math.max(16, math.min(10000, math.floor(1048576 / (#named + #ended + #passed + #noted + 64))))
  local entry = {'seq', number, 'kind', kind, 'at', call.now_text, 'ids', named, 'runs', ended}
  if passed ~= '' then entry[11], entry[12] = 'skips', passed end
  if noted ~= '' then entry[#entry + 1], entry[#entry + 2] = 'notes', noted end
  -- The call is done by now. If somebody garbled the stream, the event is lost and a reader sees the gap.
  redis.pcall('XADD', events, 'MAXLEN', '~', most, '*', unpack(entry))
  return reply
end
