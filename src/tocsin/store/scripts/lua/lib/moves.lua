-- moves: collect what a script will change, then change it: removals first, so that it passes on a full server.
-- Loops over a batch take the lists themselves and append to them.
local out, into, fields, unset = {}, {}, {}, {}

local function list_of(lists, key)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  return list
end

local function leave(zset, id)
  local list = list_of(out, zset)
  list[#list + 1] = id
end

local function enter(zset, score, id)
  local list = list_of(into, zset)
  local n = #list
  list[n + 1], list[n + 2] = score, id
end

local function set(hash, id, value)
  local list = list_of(fields, hash)
  local n = #list
  list[n + 1], list[n + 2] = id, value
end

local function drop(hash, id)
  local list = list_of(unset, hash)
  list[#list + 1] = id
end

-- A full server refuses what adds to it, unless the script has written before.
local written = false

-- `unpack` ends at about 8000 values.
local function each(command, lists)
  for key, list in pairs(lists) do
    for first = 1, #list, 4000 do
      redis.call(command, key, unpack(list, first, math.min(first + 3999, #list)))
      written = true
    end
  end
end

-- `first`: hashes that are added to before anything else, so that a full server refuses it and nothing has changed.
local function apply(first)
  if first then
    for _, hash in ipairs(first) do
      each('HSET', {[hash] = fields[hash]})
      fields[hash] = nil
    end
  end
  each('ZREM', out)
  each('HDEL', unset)
  if not (first or written) then redis.call('HDEL', sessions, session) end
  each('HSET', fields)
  each('ZADD', into)
  out, into, fields, unset = {}, {}, {}, {}
end
