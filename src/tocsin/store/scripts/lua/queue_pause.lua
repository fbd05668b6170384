-- queue_pause: let a partition's claims find nothing, or something again. What runs goes on.
-- KEYS   meta, sessions, events
-- ARGV   epoch, clock, session, seq, pause: '1' or ''
-- RETURN {1, 1 changed or 0 it was so already}
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
if (redis.call('HGET', meta, 'paused') or '') == pause then return unchanged(call, {1, 0}) end
-- The removal comes first, so that it passes on a full server.
redis.call('HDEL', meta, 'paused')
if pause ~= '' then redis.call('HSET', meta, 'paused', pause) end
return commit(call, {1, 1}, pause == '' and 'resume_queue' or 'pause_queue', {})
