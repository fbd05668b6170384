-- turn_free: give up a turn without an answer. Repeating it changes nothing.
-- KEYS   turn  HASH  token and digest of who has the turn, its answer when there is one; gone when lease or keep is over
-- ARGV   token
-- RETURN 1 freed, 0 the turn was not the caller's any more, or is answered (nothing changed)
local turn = KEYS[1]
local token = ARGV[1]
local held = redis.call('HMGET', turn, 'token', 'answer')
if held[1] ~= token or held[2] then
  return 0
end
redis.call('DEL', turn)
return 1
