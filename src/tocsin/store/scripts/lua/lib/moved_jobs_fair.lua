-- moved_jobs: as moved_jobs.lua. A job in line is in `ready` under the name that its entry in `spots` says, and its
-- tenant has a turn; one that is working counts for its tenant.
--@include spot
--@include claim_fields
-- Of the values that are carried for a job.
local CLAIM, SPOT = 2, 6

-- Safe to repeat: a job that is there already has been added.
local function add_to_order(id, values)
  local spot, raw = values[SPOT], values[CLAIM]
  if spot and redis.call('HEXISTS', spots, id) == 0 then
    local band, tenant = read_spot(spot, now)
    enter(READY[band], 0, member_of_spot(spot, id))
    join(band, tenant)
  end
  local tenant = token_of_claim(raw) > 0 and tenant_of_claim(raw)
  if tenant and redis.call('HGET', claims, id) ~= raw then
    local fair = fair_state()
    load_states({tenant})
    fair.states[tenant].active, fair.touched[tenant] = fair.states[tenant].active + 1, fair.states[tenant]
  end
end

local function remove_from_order(id)
  local spot, raw = redis.call('HGET', spots, id), redis.call('HGET', claims, id)
  if spot then
    local band = read_spot(spot, now)
    leave(READY[band], member_of_spot(spot, id))
  end
  if token_of_claim(raw) > 0 then freed(raw) end
end
