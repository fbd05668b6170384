-- run_advance: say when jobs are due next whose last run ended while its worker could not tell (run_park).
-- KEYS   meta, sessions, jobs, waiting, working, claims, paused, errors, done, results, unnamed, watchers, outbox,
--        events
-- ARGV   epoch, clock, session, seq, owner, items: msgpack columns: ids, tokens, next dues (0 for none), passed;
--        passed: the ticks that the job passes, as in run_finish
-- RETURN {1, lost, head, carry} as run_finish
--@include session
local call = begin_call()
if call.refused then return call.refused end
if call.answered then return call.answered end
local now, writes = call.now, call.writes
--@include writes
--@include order
--@include settle_each

local ids, tokens, nexts, passes = unpack(cmsgpack.unpack(items))

local function advance(id, claim, next_due, passed)
  local record = redis.call('HGET', jobs, id)
  if not record then return end_job(id, 0) end
  local verdict, put = apply_intent(id, claim, record, next_due, true)
  if verdict ~= 'removed' and verdict ~= 'put' then skip_passed(id, passed, math.huge) end
  if verdict then return end
  if next_due == 0 then return end_job(id, 0) end
  drop(claims, id)
  drop(errors, id)
  set(jobs, id, with_uncounted(put, claim))
  enter_line(id, next_due, nil, put)
end

local held, lost = settle_each(ids, tokens, function(i, id, claim) advance(id, claim, nexts[i], passes[i]) end)
if #held == 0 then return nothing_held(lost) end
write_all()
return commit(call, {1, lost, head(), call.carry}, 'advance', held)
