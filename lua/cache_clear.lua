#!lua flags=allow-oom
-- Tell all caches of a table to let go of every row they hold; the rows here are dropped one by one.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: the id that stands for all rows, a version
-- RETURNS: 1
-- ERRORS: none
-- WRITES: no key; it publishes on coh
-- COST: O(1)
local base = KEYS[1]
redis.call('PUBLISH', base .. 'coh', ARGV[1] .. ':' .. ARGV[2])
return 1
