-- term_leave: give the term up, if it is still this worker's.
-- KEYS   leader
-- ARGV   worker
-- RETURN 1 given up, 0 it was not this worker's, or not any more
if redis.call('GET', leader) ~= worker then return 0 end
return redis.call('DEL', leader)
