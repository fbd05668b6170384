-- writes: collect what a script changes, then write it: removals first, so that they pass on a full server.
-- Loops over a batch take the lists themselves and append to them.
local function list_of(lists, key)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  return list
end

local function leave(zset, id)
  local list = list_of(writes.leaving, zset)
  list[#list + 1] = id
end

local function enter(zset, score, id)
  local list = list_of(writes.entering, zset)
  local n = #list
  list[n + 1], list[n + 2] = score, id
end

local function set(hash, id, value)
  local list = list_of(writes.setting, hash)
  local n = #list
  list[n + 1], list[n + 2] = id, value
end

local function drop(hash, id)
  local list = list_of(writes.dropping, hash)
  list[#list + 1] = id
end

-- In pieces, because `unpack` ends at about 8000 values.
local function write_lists(command, lists)
  for key, list in pairs(lists) do
    for first = 1, #list, 4000 do
      redis.call(command, key, unpack(list, first, math.min(first + 3999, #list)))
      writes.begun = true
    end
  end
end

-- `first`: hashes that are added to before anything else, so that a full server refuses it and nothing has changed.
-- Otherwise a removal must come first: a full server refuses what adds to it unless the script has written before.
local function apply(first)
  for _, hash in ipairs(first or {}) do
    write_lists('HSET', {[hash] = writes.setting[hash]})
    writes.setting[hash] = nil
  end
  write_lists('ZREM', writes.leaving)
  write_lists('HDEL', writes.dropping)
  if not (first or writes.begun) then redis.call('HDEL', sessions, call.session) end
  write_lists('HSET', writes.setting)
  write_lists('ZADD', writes.entering)
  writes.leaving, writes.entering, writes.setting, writes.dropping = {}, {}, {}, {}
end
