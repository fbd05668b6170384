-- pick: which of those in line come next, in a queue of order `priority`. Strict: the first band that has some. Aged: as
-- if each band were `aging` ms younger than the one before, so that none starves.
local aging = tonumber(redis.call('HGET', meta, 'aging'))

-- A band's jobs as far as they were looked at: pages of its set, which stands still until all is written.
local lines = {}
local function line_of(band, most)
  local line = lines[band] or {ids = {}, scores = {}, at = 1, next = 0, more = true}
  lines[band] = line
  if line.at > #line.ids and line.more then
    -- Some more than wanted where some may be sent apart.
    local size = most + (all_fresh and 0 or 50)
    local found = redis.call('ZRANGE', READY[band], line.next, line.next + size - 1, 'WITHSCORES')
    line.ids, line.scores, line.at, line.next = {}, {}, 1, line.next + size
    for at = 1, #found, 2 do
      line.ids[#line.ids + 1], line.scores[#line.scores + 1] = found[at], found[at + 1]
    end
    line.more = #line.ids == size
  end
  return line
end

local function age_of(band, at)
  local score = lines[band].scores[at]
  return score and tonumber(score) + band * aging
end

-- The band that comes next, and the age up to which it does: that of the next one's head.
local function first_band(most)
  local first, best, limit
  for band = 0, 4 do
    local line = line_of(band, most)
    if line.ids[line.at] then
      if not aging then return band end
      local age = age_of(band, line.at)
      if not best or age < best then
        first, best, limit = band, age, best
      elseif not limit or age < limit then
        limit = age
      end
    end
  end
  return first, limit
end

-- Those at the head of a band that come before all others: the whole page if it is strict.
local function head_of(band, limit, most)
  local line, ids, scores = lines[band], {}, {}
  local at = line.at
  while #ids < most and line.ids[at] and (at == line.at or not limit or age_of(band, at) < limit) do
    ids[#ids + 1], scores[#scores + 1] = line.ids[at], line.scores[at]
    at = at + 1
  end
  return ids, scores
end

local function pick(most)
  local looked_at = 0
  while #taken < most and bytes < LARGEST and #parkings < 1000 and looked_at < most + 1000 do
    local missing = most - #taken
    local band, limit = first_band(missing)
    if not band then return end
    local ids, scores = head_of(band, limit, missing)
    take(READY[band], ids, scores, most + #parkings, 1)
    lines[band].at = lines[band].at + #ids
    looked_at = looked_at + #ids
  end
end
