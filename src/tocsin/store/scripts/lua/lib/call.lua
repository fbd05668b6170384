-- call: what every changing script begins and ends with.
-- A wrong epoch (wiped, restored or foreign server) or a sealed partition answers {-1, epoch} and changes nothing.
-- A call has a session and a growing seq: the same seq again gets the same answer, a lower one is refused
-- with {-2}. So a call whose reply was lost can be repeated.
local now, micros
if clock == '' then
  local time = redis.call('TIME')
  micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
  now = math.floor(micros / 1000)
else
  now = tonumber(clock)
  micros = now * 1000
end
seq = tonumber(seq)
local now_text = clock ~= '' and clock or string.format('%.0f', now)

-- With what pace.lua reads: a command costs a script far more than a field.
local about = redis.call('HMGET', meta, 'epoch', 'sealed', 'seq', 'fence', 'every', 'burst', 'spent')
if about[1] ~= epoch or about[2] then return {-1, about[1] or ''} end

-- What doubles hold exactly: nobody counts further, so a greater number is garbage.
local GREATEST = 9007199254740992
local last = redis.call('HGET', sessions, session)
local answered
if last and #last > 16 then
  local before = struct.unpack('>I8', last)
  if before > seq and before < GREATEST then return {-2} end
  if before == seq then answered = cmsgpack.unpack(string.sub(last, 17)) end
end

-- Growing, and the same for all runs of one call. Micros go beyond what a double prints exactly with `..`,
-- not beyond what it holds.
local fence, calls = tonumber(about[4] or 0), tonumber(about[3] or 0)
-- Somebody else wrote there. Tokens still grow with the time; versions go on from a number that none has reached.
if not (fence and fence < GREATEST) then fence = 0 end
if not (calls and calls >= 0 and calls < GREATEST) then calls = now end
local token, version = math.max(fence + 1, micros), calls + 1

-- Nothing changed but the seq: a late copy of this call, which may find something to do, must stay refused.
-- The removal comes first, so that it passes on a full server.
local function unchanged(reply)
  redis.call('HDEL', sessions, session)
  redis.call('HSET', sessions, session, struct.pack('>I8I8', seq, now) .. cmsgpack.pack(reply))
  return reply
end

-- Ticks that this call moves a job past without a run of their own: id, first ms, until ms (not included), why.
-- Reasons are numbered as in model/skipped_ticks.py; these are given by scripts, the others by workers.
local WHY = {PAUSED = 1, OVERLAP = 2, EDITED = 5, CANCELLED = 7}
local skips = {}
local function skip(id, first, to, why)
  if first >= to then return end
  local n = #skips
  skips[n + 1], skips[n + 2], skips[n + 3], skips[n + 4] = id, first, to, why
end

-- What is told of runs that went outside: id, note.
local notes = {}
local function note(id, text)
  if text == '' then return end
  local n = #notes
  notes[n + 1], notes[n + 2] = id, text
end

-- A counter that somebody garbled begins anew: nothing may fail after the first write.
local function count_up(counter, times)
  if type(redis.pcall('HINCRBY', meta, counter, times)) == 'table' then redis.call('HSET', meta, counter, times) end
end

-- Remember the answer, count the call, tell the events. Events are bounded by count and, as if all were as
-- large as this one, by bytes; a reader sees a gap in their seq.
-- `ids` is who changed, in msgpack if the caller has that; `runs`, where attempts ended, has for each of them due u64,
-- attempt u32, outcome u8; `skips`, only where there are some, has id, first, until, why of each; so has `notes` id, note.
-- What follows are fields of `meta` that change with the call, and their values.
local function commit(reply, kind, ids, runs, ...)
  -- As text: Redis 7.2.4 passes some whole numbers on as 1e+9, which is no integer to who reads it.
  local number = string.format('%.0f', version)
  redis.call('HSET', meta, 'seq', number, 'fence', string.format('%.0f', token), ...)
  redis.call('HSET', sessions, session, struct.pack('>I8I8', seq, now) .. cmsgpack.pack(reply))
  local named, ended = type(ids) == 'string' and ids or cmsgpack.pack(ids), runs and table.concat(runs) or ''
  local passed = skips[1] and cmsgpack.pack(skips) or ''
  local noted = notes[1] and cmsgpack.pack(notes) or ''
  local most = math.max(16, math.min(10000, math.floor(1048576 / (#named + #ended + #passed + #noted + 64))))
  local entry = {'seq', number, 'kind', kind, 'at', now_text, 'ids', named, 'runs', ended}
  if passed ~= '' then entry[11], entry[12] = 'skips', passed end
  if noted ~= '' then entry[#entry + 1], entry[#entry + 2] = 'notes', noted end
  -- Not if somebody garbled the stream: all is done by now, and a reader sees the gap.
  redis.pcall('XADD', events, 'MAXLEN', '~', most, '*', unpack(entry))
  return reply
end
