-- job_unpark: put a parked job back in line at its due time, to be tried again by anybody.
-- KEYS   meta      HASH    epoch, seq, fence, counters
--        sessions  HASH    session -> seq, time, answer
--        waiting   ZSET    id -> not before ms
--        claims    HASH    id -> claim
--        parked    ZSET    id -> handler digest, or when to read it again ms
--        errors    HASH    id -> last failure
--        events    STREAM  one entry per call
-- ARGV   epoch, clock, session, seq, id
-- RETURN {1, code, head}: 0 not parked, 1 unparked
-- USES   call, records, claims, moves, line
if answered then return answered end
if not redis.call('ZSCORE', parked, id) then return unchanged({1, 0, -1}) end
local claim = claim_if_readable(redis.call('HGET', claims, id)) or fresh_claim(now)
claim.intent = with_unread_times(claim.intent, 0)
leave(parked, id)
enter_line(id, claim.due, claim)
drop(errors, id)
if is_plain(claim) then drop(claims, id) else set(claims, id, write_claim(claim)) end
apply()
return commit({1, 1, claim.due}, 'unpark', {id})
