-- record_digest: a handler's digest, as a number and as the bytes of a record and of the caller's list of handlers.
local function digest_bytes(digest) return struct.pack('>I4', digest) end
local function digest_at(bytes, at) return (struct.unpack('>I4', bytes, at)) end
