#!lua flags=allow-oom
-- Apply a coherence message: drop the row if the message is newer, and tell nobody, for all were sent it.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: id, version, ms that a dropped version is kept
-- RETURNS: 1 when a row was dropped, else 0
-- ERRORS: none
-- WRITES: the row, <id>:dropped, <id>:flight; it publishes on wake
-- COST: O(1)
-- @include _order
-- @include _version
-- @include _flight
local base, id, version = KEYS[1], ARGV[1], ARGV[2]
local row = base .. id
local there = version_at(row)
if there and not version_newer(version, there) then return 0 end
if version_newer(version, version_at(row .. ':dropped')) then
  redis.call('SET', row .. ':dropped', version, 'PX', ARGV[3])
end
local holder, loading = flight_read(row)
if holder and version_newer(version, loading) then flight_detach(base, id, 'dropped') end
return there and redis.call('DEL', row) or 0
