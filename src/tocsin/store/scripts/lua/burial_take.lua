-- burial_take: one worker at a time brings back the runs of a dead one; go on with that, or take it over.
-- KEYS   buried
-- ARGV   clock, worker, held, patience: until when the caller has it, 0 if it has not; for how many ms it wants it now
-- RETURN until when the caller has it; 0: another worker has it, or all runs are brought back
--@include time
local now = read_time()
local score = redis.call('ZSCORE', buried, worker)
if not score then return 0 end
local until_ms = tonumber(score)
patience = tonumber(patience)
-- Too far in the future: the clock was set back since.
local free = until_ms <= now or until_ms > now + 2 * patience
if not free and until_ms ~= tonumber(held) then return 0 end
redis.call('ZADD', buried, now + patience, worker)
return now + patience
