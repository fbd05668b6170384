-- turn_answer: remember the answer of the caller that has the turn. Repeating it changes nothing.
-- KEYS   turn  HASH  token and digest of the caller that has the turn, and its answer; expires with lease or keep
-- ARGV   token, digest, answer, keep ms: by the server's clock, as every expiry is
-- RETURN 1 remembered, 0 another caller has the turn or has answered (nothing changed)
local turn = KEYS[1]
local token, digest, answer, keep_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local held = redis.call('HGET', turn, 'token')
-- If the lease is over and no other caller came, the answer counts: the work is done and must not be done again.
if held and held ~= token then
  return 0
end
-- Delete first: after one write Redis lets a script write more even without free memory, and this answer must be kept.
redis.call('DEL', turn)
redis.call('HSET', turn, 'token', token, 'digest', digest, 'answer', answer)
redis.call('PEXPIRE', turn, keep_ms)
return 1
