-- session_entry: the bytes of an entry in `sessions`: seq u64, time ms u64, msgpack of the answer.
-- Apart from session.lua, because scripts without a session read such entries, too.
local function pack_session_entry(seq, now, answer) return struct.pack('>I8I8', seq, now) .. cmsgpack.pack(answer) end

-- The seq and the time of a session's last call, and its answer if that call had the `wanted` seq. Nothing for a
-- missing entry or for garbage.
local function read_session_entry(raw, wanted)
  if not raw or #raw <= 16 then return nil end
  local seq, time = struct.unpack('>I8I8', raw)
  return seq, time, seq == wanted and cmsgpack.unpack(string.sub(raw, 17)) or nil
end
