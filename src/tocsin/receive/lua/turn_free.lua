-- turn_free: give up a turn without an answer. Repeating it changes nothing.
-- KEYS   turn  HASH  token and digest of the caller that has the turn, and its answer; expires with lease or keep
-- ARGV   token
-- RETURN 1 freed, 0 the caller has the turn no more, or it is answered (nothing changed)
local turn = KEYS[1]
local token = ARGV[1]
local held = redis.call('HMGET', turn, 'token', 'answer')
if held[1] ~= token or held[2] then
  return 0
end
redis.call('DEL', turn)
return 1
