#!lua flags=no-writes
-- Tell the time of the server that holds this queue.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: unix ms
-- ERRORS: none
-- WRITES: nothing
-- COST: O(1)
-- @include _clock
local base = KEYS[1]
return base and clock_ms()
