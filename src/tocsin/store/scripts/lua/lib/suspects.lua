-- suspects: let those that stand apart (score.lua) into the line, as many as this worker may try. In line they have the
-- place of their due time, so that caps, rates and turns hold for them as for all others. A suspect whose turn does not
-- come stays in line until a claim meets it, which takes it or sends it back.

-- Whether anything is to be written. It looks at some more than `most`, because it parks what this worker has no
-- handler for.
local function call_suspects(batch, most)
  if most < 1 then return false end
  local found = redis.call('ZRANGEBYSCORE', waiting, '-inf', APART_ONLY, 'LIMIT', 0, most + 50)
  local called, read = 0, 0
  for _, id in ipairs(found) do
    if called == most or read >= LARGEST then break end
    local raw, record = redis.call('HGET', claims, id), redis.call('HGET', jobs, id)
    local claim = claim_if_readable(raw)
    local due, place = claim and claim.due or now, claim and claim.place or 0
    read = read + #(record or '')
    leave(waiting, id)
    if is_understood(batch, record) then
      enter_ready(id, due, place, record)
      called = called + 1
    else
      park(batch, id, due, place, record, claim and raw)
    end
  end
  return #found > 0
end
