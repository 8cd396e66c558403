#!lua flags=no-writes
-- List the groups that have waiting or active jobs, or a setting.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: groups, in no order
-- ERRORS: none
-- WRITES: nothing
-- COST: O(lanes)
-- @include _groups
return groups_of(KEYS[1], true)
