-- places: what else a job that is moved has in a queue of some order. In one of order `due`, nothing.
-- `values` has what the job has, in the order of members.lua. LEFTOVERS are the keys that have no job when no other has.
local LEFTOVERS = {}
local function give_place(id, values) end
local function take_place(id) end
