-- session_keep: keep the last answers of sessions in a partition that was moved, for programs whose reply was lost.
-- KEYS   meta, sessions
-- ARGV   move, items: msgpack [session, its entry] * n
-- RETURN 1 done, 0 this move has not sealed it (nothing changed)
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
local flat = cmsgpack.unpack(items)
if #flat > 0 then redis.call('HSET', sessions, unpack(flat)) end
return 1
