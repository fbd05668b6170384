-- session_answer: what a session's last call was answered. Changes nothing.
-- KEYS   sessions
-- ARGV   session, seq
-- RETURN {1, answer}; {0} if its last call was another one
--@include session_entry
local _, _, answer = read_session_entry(redis.call('HGET', sessions, session), tonumber(seq))
return answer and {1, answer} or {0}
