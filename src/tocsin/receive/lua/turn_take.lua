-- turn_take: take the turn of a key, or extend its lease. Repeating it after a lost reply returns the same.
-- KEYS   turn  HASH  token and digest of the caller that has the turn, and its answer; expires with lease or keep
-- ARGV   token, digest, lease ms: by the server's clock, as every expiry is
-- RETURN {1, digest, 0} the caller has the turn
--        {0, digest, ms} another caller has it, for so long unless it renews (nothing changed)
--        {2, digest, answer} it is answered (nothing changed)
local turn = KEYS[1]
local token, digest, lease_ms = ARGV[1], ARGV[2], ARGV[3]
local held = redis.call('HMGET', turn, 'token', 'digest', 'answer')
if held[3] then
  return {2, held[2], held[3]}
end
if held[1] and held[1] ~= token then
  return {0, held[2], redis.call('PTTL', turn)}
end
if not held[1] then
  redis.call('HSET', turn, 'token', token, 'digest', digest)
end
redis.call('PEXPIRE', turn, lease_ms)
return {1, digest, 0}
