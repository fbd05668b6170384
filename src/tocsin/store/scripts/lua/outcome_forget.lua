-- outcome_forget: drop outcomes that are remembered no longer. What is left is right, however often it is called.
-- KEYS   done      ZSET    id -> remembered until ms
--        results   HASH    id -> outcome
--        unnamed   ZSET    id -> ended ms, of those in done that nobody named
-- ARGV   clock, most: how many outcomes of unnamed jobs the partition keeps
-- RETURN how many were dropped, at most 2000; 0: there are no more
-- USES   now, forget
return forget(tonumber(most))
