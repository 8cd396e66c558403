#!lua flags=no-writes
-- Count a queue's jobs per state in one look.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: {pending, in lanes, active, scheduled, dead, completed so far, failed so far, paused 0 | 1, flow parents that wait}
-- ERRORS: none
-- WRITES: nothing
-- COST: O(lanes)
-- @include _row
-- @include _groups
-- @include _counts
return (counts_of(KEYS[1]))
