-- events: what an event says beside the ids of the jobs that changed.

-- Why a tick had no run of its own, numbered as in model/skipped_ticks.py. Scripts give these reasons, workers the
-- others.
local WHY = {PAUSED = 1, OVERLAP = 2, EDITED = 5, CANCELLED = 7}

-- The ticks from `first` to before `to` have no run of their own.
local function skip(id, first, to, why)
  if first >= to then return end
  local skips = call.skips
  local n = #skips
  skips[n + 1], skips[n + 2], skips[n + 3], skips[n + 4] = id, first, to, why
end

-- Skip the ticks that a worker passed over, up to `until_ms`: [first u64, to u64, why u8] * n.
local function skip_passed(id, passed, until_ms)
  for at = 1, #passed, 17 do
    local first, to, why = struct.unpack('>I8I8B', passed, at)
    skip(id, first, math.min(to, until_ms), why)
  end
end

-- A note about a run, from the worker that ran it.
local function note(id, text)
  if text == '' then return end
  local notes = call.notes
  local n = #notes
  notes[n + 1], notes[n + 2] = id, text
end

-- An attempt that ended, for the event: due u64, attempt u32, outcome u8.
local function event_run(due, attempt, outcome) return struct.pack('>I8I4B', due, attempt, outcome) end
