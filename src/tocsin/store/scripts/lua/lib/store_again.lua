-- store_again: count a record that is stored a second time, or its copy, for the largest record (widest.lua).
-- Apart from that file, because run_finish is near the limit of locals.
--@include record
-- The walk begins anew: that is rare, and simple.
local function store_again(record)
  if #record <= WIDE then return end
  drop(meta, 'walk')
  call.stored_again = math.max(call.stored_again or 0, #record)
  local widest = tonumber(redis.call('HGET', meta, 'widest') or 0)
  if call.stored_again > widest then set(meta, 'widest', call.stored_again) end
end
