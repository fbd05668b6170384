-- partition_read: answer several reading commands at one instant. Changes nothing.
-- A transaction would do the same, but a full Redis refuses even transactions that only read.
-- KEYS   parts*
-- ARGV   items: msgpack [[command, argument after the key…]] * n
-- RETURN [answer] * n
local answers = {}
for i, item in ipairs(cmsgpack.unpack(items)) do
  answers[i] = redis.call(item[1], parts[i], unpack(item, 2))
end
return answers
