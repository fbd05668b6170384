-- outcome_forget: drop outcomes whose time is over. Safe to repeat.
-- KEYS   done, results, unnamed
-- ARGV   clock, most: how many outcomes of unnamed jobs the partition keeps
-- RETURN how many were dropped, at most 2000; 0: there are no more
--@include time
local now = read_time()
--@include forget_outcomes
return forget_outcomes(tonumber(most))
