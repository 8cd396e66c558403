#!lua flags=allow-oom
-- End a flight that has nothing to store, and tell those who wait for it why.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: id, owner, "failed" or "released", what the waiters are told
-- RETURNS: 1, or 0 when the caller's flight was gone before
-- ERRORS: none
-- WRITES: <id>:flight; it publishes on wake
-- COST: O(1)
-- @include _order
-- @include _version
-- @include _flight
return flight_end(KEYS[1], ARGV[1], ARGV[3], ARGV[2], ARGV[4]) and 1 or 0
