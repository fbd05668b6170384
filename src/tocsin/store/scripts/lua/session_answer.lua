-- session_answer: what a session's last call was answered. Changes nothing.
-- KEYS   sessions  HASH    session -> seq, time, answer
-- ARGV   session, seq
-- RETURN {1, answer}; {0} if its last call was another one
local last = redis.call('HGET', sessions, session)
if not last or #last <= 16 or struct.unpack('>I8', last) ~= tonumber(seq) then return {0} end
return {1, cmsgpack.unpack(string.sub(last, 17))}
