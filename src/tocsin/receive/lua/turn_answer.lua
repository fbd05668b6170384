-- turn_answer: remember the answer of who has the turn. Repeating it changes nothing.
-- KEYS   turn  HASH  token and digest of who has the turn, its answer when there is one; gone when lease or keep is over
-- ARGV   token, digest, answer, keep ms: by the server's clock, as every expiry is
-- RETURN 1 remembered, 0 another has the turn or has answered (nothing changed)
local turn = KEYS[1]
local token, digest, answer, keep_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local held = redis.call('HGET', turn, 'token')
-- Nobody's turn: the lease was over, but nobody came. What was done is done, so the next one must not do it again.
if held and held ~= token then
  return 0
end
-- A removal first: also on a full server what was done must be remembered.
redis.call('DEL', turn)
redis.call('HSET', turn, 'token', token, 'digest', digest, 'answer', answer)
redis.call('PEXPIRE', turn, keep_ms)
return 1
