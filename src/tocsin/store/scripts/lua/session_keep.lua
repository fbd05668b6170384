-- session_keep: keep what sessions last did in a partition that was moved, for those who did not hear of it.
-- KEYS   meta      HASH    sealed
--        sessions  HASH    session -> seq, time, answer
-- ARGV   move, items: msgpack [session, its entry] * n
-- RETURN 1 done, 0 this move has not sealed it (nothing changed)
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
local flat = cmsgpack.unpack(items)
if #flat > 0 then redis.call('HSET', sessions, unpack(flat)) end
return 1
