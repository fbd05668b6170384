-- pick: which of those in line come next, in a queue of order `priority`. Strict: the first band that has some. Aged: as
-- if each band were `aging` ms younger than the one before, so that none starves.
local function pick_strict(most)
  for band = 0, 4 do
    local missing = most - #taken
    if missing < 1 then return end
    local found = redis.call('ZRANGE', READY[band], 0, missing + (all_fresh and 0 or 50) - 1, 'WITHSCORES')
    local ids, scores = {}, {}
    for at = 1, #found, 2 do
      ids[#ids + 1], scores[#scores + 1] = found[at], found[at + 1]
    end
    if #ids > 0 then take(READY[band], ids, scores, most + #parkings) end
  end
end

-- The heads of the bands, merged: how many of each are among the first.
local function shares_of_bands(heads, most, aging)
  local at = {[0] = 1, 1, 1, 1, 1}
  for _ = 1, most do
    local best, first
    for band = 0, 4 do
      local score = heads[band][at[band] + 1]
      local age = score and tonumber(score) + band * aging
      if age and (not best or age < best) then best, first = age, band end
    end
    if not first then break end
    at[first] = at[first] + 2
  end
  return at
end

local function pick_aged(most, aging)
  local heads = {}
  for band = 0, 4 do
    heads[band] = redis.call('ZRANGE', READY[band], 0, most + (all_fresh and 0 or 50) - 1, 'WITHSCORES')
  end
  local upto = shares_of_bands(heads, most, aging)
  for band = 0, 4 do
    local ids, scores = {}, {}
    for at = 1, upto[band] - 1, 2 do
      ids[#ids + 1], scores[#scores + 1] = heads[band][at], heads[band][at + 1]
    end
    if #ids > 0 then take(READY[band], ids, scores, most + #parkings) end
  end
end

local function pick(most)
  local aging = tonumber(redis.call('HGET', meta, 'aging'))
  if aging then pick_aged(most, aging) else pick_strict(most) end
end
