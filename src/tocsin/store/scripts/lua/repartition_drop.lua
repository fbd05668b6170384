-- repartition_drop: delete a partition that a move has emptied.
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, parked, dead, errors, done, results, unnamed,
--        blocked, needs, watchers, outbox, events, weights, ready0, ready1, ready2, ready3, ready4, turns0, turns1,
--        turns2, turns3, turns4, tenants, resting
-- ARGV   move
-- RETURN 1 deleted, now or before; 0 this move has not sealed it, or something is left in it (nothing changed)
--@include moved_keys
if redis.call('EXISTS', meta) == 0 then return 1 end
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
for _, keys in ipairs({moved_hashes(), moved_zsets(), {watchers, outbox}}) do
  for _, key in ipairs(keys) do
    if redis.call('EXISTS', key) == 1 then return 0 end
  end
end
redis.call('DEL', meta, sessions, events, weights, tenants, resting, unpack(READY, 0, 4))
redis.call('DEL', unpack(TURNS, 0, 4))
return 1
