-- partition_delete: delete a sealed partition that has no jobs, with all that it remembers.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed,
--        blocked, needs, watchers, outbox, events, weights, ready0, ready1, ready2, ready3, ready4, turns0, turns1,
--        turns2, turns3, turns4, tenants, spots, resting
-- ARGV   move
-- RETURN 1 deleted, now or before; 0 it is not sealed in this name, or has jobs (nothing changed)
if redis.call('EXISTS', meta) == 0 then return 1 end
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
if redis.call('EXISTS', jobs, waiting, working, paused, parked, dead, blocked, unpack(READY, 0, 4)) > 0 then
  return 0
end
-- UNLINK: what is remembered may be large, and is freed beside the server's work.
redis.call('UNLINK', meta, sessions, claims, errors, done, results, unnamed, needs, watchers, outbox, events, weights,
  tenants, spots, resting, unpack(TURNS, 0, 4))
return 1
