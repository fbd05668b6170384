-- ready_member_line: what members of any set of jobs say, for readers of them all. The layout is in ready_member.lua.

-- The id that a member of any `ready`, or of another set of jobs, names: it is the id itself but in fair queues. And
-- the due time that it names there.
local function id_in_line(member) return string.match(member, '^[^%z]*%z%d+%z%d+%z(.*)$') or member end
local function due_in_member(member) return tonumber(string.match(member, '^[^%z]*%z(%d+)%z') or nil) end
