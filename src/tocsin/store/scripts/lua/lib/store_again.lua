-- store_again: a script stores a record that was put a while ago, or the copy of one, and `widest` must know
-- (widest.lua).
--@include record
-- The walk begins anew: that is rare, and simple.
local function store_again(record)
  if #record <= WIDE then return end
  drop(meta, 'walk')
  call.stored_again = math.max(call.stored_again or 0, #record)
  local widest = tonumber(redis.call('HGET', meta, 'widest') or 0)
  if call.stored_again > widest then set(meta, 'widest', call.stored_again) end
end
