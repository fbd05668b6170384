-- ordered_entry: where a job stands in the line of an ordered queue, in what line_entry_priority.lua and
-- line_entry_fair.lua have in common.
--@include score_parts
local function line_entry_of(id)
  local entry = ready_entry_of(id)
  if entry then return entry end
  local score = redis.call('ZSCORE', waiting, id)
  if not score then return nil end
  local apart = tonumber(score) <= LAST_APART
  if apart then score = string.format('%.0f', (split_score(tonumber(score)))) end
  return {due = tonumber(score), score = score, place = 0, apart = apart}
end
