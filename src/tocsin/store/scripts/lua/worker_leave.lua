-- worker_leave: a worker that has handed everything over is gone; or a buried one's claims are all brought back.
-- KEYS   workers, beats, pulses, buried
-- ARGV   worker
-- RETURN 1
redis.call('HDEL', beats, worker)
redis.call('HDEL', workers, worker)
redis.call('ZREM', pulses, worker)
redis.call('ZREM', buried, worker)
return 1
