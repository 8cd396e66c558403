#!lua flags=allow-oom
-- Renew the lease of a flight, unless the row was taken from it.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: id, owner, lease ms, ms that a flight is known beyond its lease
-- RETURNS: 1, or 0 when the caller's flight is gone
-- ERRORS: none
-- WRITES: <id>:flight
-- COST: O(1)
-- @include _clock
-- @include _order
-- @include _version
-- @include _flight
local row, owner, lease = KEYS[1] .. ARGV[1], ARGV[2], tonumber(ARGV[3])
local holder, version, awaited = flight_read(row)
if holder ~= owner then return 0 end
flight_write(row, version, awaited, clock_ms() + lease, owner, lease + tonumber(ARGV[4]))
return 1
