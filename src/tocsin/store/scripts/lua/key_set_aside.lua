-- key_set_aside: move a key that holds another kind of data than Tocsin keeps there out of the way.
-- KEYS   misused, elsewhere
-- ARGV   kind: what the key should hold
-- RETURN what it held; '' if there is none, or it holds what it should
local found = redis.call('TYPE', misused).ok
if found == 'none' or found == kind then return '' end
redis.call('RENAME', misused, elsewhere)
return found
