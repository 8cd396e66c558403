#!lua flags=no-writes
-- Look whether registering a repeat would change nothing, so that a server that takes no writes is not asked for one.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: name, replace ("1" | "0"), every ms, template, then field and value of each other, as for repeat_register
-- RETURNS: 1 it is there and would stay as it is, 0 it would be registered or changed
-- ERRORS: none
-- WRITES: nothing
-- COST: O(1)
-- @include _row
-- @include _registration
local stored, _, same = registration_compare(KEYS[1], ARGV[1], 3)
return stored and (same or ARGV[2] ~= '1') and 1 or 0
