-- move: how a script begins that carries jobs to another partition. It has no session: `move` is the repartitioning
-- that must have sealed the partition, and each of its steps is safe to repeat.
local function begin_move()
  if redis.call('HGET', meta, 'sealed') ~= move then return {refused = 0} end
  return {now = tonumber(now), writes = {leaving = {}, entering = {}, setting = {}, dropping = {}}}
end
