-- repartition_prepare: give a sealed partition settings, numbers to count on from, and tenants' weights.
-- KEYS   meta, weights
-- ARGV   move, fields, shares: msgpack [field, value] * n; msgpack [tenant, weight] * n, at most 1000
-- RETURN 1 done, 0 this move has not sealed it (nothing changed)
if redis.call('HGET', meta, 'sealed') ~= move then return 0 end
for hash, flat in pairs({[meta] = cmsgpack.unpack(fields), [weights] = cmsgpack.unpack(shares)}) do
  if #flat > 0 then redis.call('HSET', hash, unpack(flat)) end
end
return 1
