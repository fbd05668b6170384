-- claim_order: claim jobs in the order of their queue. This is the order `priority`. Strict: the first band that has
-- some. Aged: as if each band were `aging` ms younger than the one before, so that none starves.

-- A band's jobs as far as they were looked at: pages of its set, which stands still until all is written.
local function page_of(search, band, most)
  local page = search.pages[band] or {ids = {}, scores = {}, at = 1, next = 0, more = true}
  search.pages[band] = page
  if page.at > #page.ids and page.more then
    local size = most + search.spare
    local found = redis.call('ZRANGE', READY[band], page.next, page.next + size - 1, 'WITHSCORES')
    page.ids, page.scores, page.at, page.next = {}, {}, 1, page.next + size
    for at = 1, #found, 2 do
      page.ids[#page.ids + 1], page.scores[#page.scores + 1] = found[at], found[at + 1]
    end
    page.more = #page.ids == size
  end
  return page
end

local function age_of(search, band, at)
  local score = search.pages[band].scores[at]
  return score and tonumber(score) + band * search.aging
end

-- The band that comes next, and the age up to which it does: that of the next band's head.
local function first_band(search, most)
  local first, best, limit
  for band = 0, 4 do
    local page = page_of(search, band, most)
    if page.ids[page.at] then
      if not search.aging then return band end
      local age = age_of(search, band, page.at)
      if not best or age < best then
        first, best, limit = band, age, best
      elseif not limit or age < limit then
        limit = age
      end
    end
  end
  return first, limit
end

-- The jobs at the head of a band that come before all others: the whole page if the order is strict.
local function head_of(search, band, limit, most)
  local page, ids, scores = search.pages[band], {}, {}
  local at = page.at
  while #ids < most and page.ids[at] and (at == page.at or not limit or age_of(search, band, at) < limit) do
    ids[#ids + 1], scores[#scores + 1] = page.ids[at], page.scores[at]
    at = at + 1
  end
  return ids, scores
end

local function claim_in_order(batch, most)
  -- Some more are read where some may be sent apart.
  local search = {aging = tonumber(redis.call('HGET', meta, 'aging')), pages = {}}
  search.spare = batch.no_unfinished_runs and 0 or 50
  local looked_at = 0
  while #batch.ids < most and batch.bytes < LARGEST and batch.parked < 1000 and looked_at < most + 1000 do
    local missing = most - #batch.ids
    local band, limit = first_band(search, missing)
    if not band then return end
    local ids, scores = head_of(search, band, limit, missing)
    take(batch, READY[band], ids, scores, most + batch.parked, 1)
    search.pages[band].at = search.pages[band].at + #ids
    looked_at = looked_at + #ids
  end
end
