#!lua
-- Store what a flight has loaded, unless a newer row is there or the row was dropped meanwhile, and end the flight.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: id, owner, the version loaded under, value, ttl ms, "1" to store only while the flight stands, "1" to tell all caches, ms that the versions of tags are kept, TAG ids of the row
-- RETURNS: 1 when it is stored, 0 when it was too old
-- ERRORS: none
-- WRITES: the row, <id>:flight, tag:top; it publishes on wake, and on coh
-- COST: O(tags)
-- @include _order
-- @include _version
-- @include _tags
-- @include _flight
local base, id, owner, version = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local row, frame = base .. id, version .. ARGV[4]
local there = version_at(row)
local stored = 0
if there == version and redis.call('GET', row) == frame then
  -- Sent again after its answer was lost.
  stored = 1
else
  local floor = version_top(version_top(there, version_at(row .. ':dropped')), tags_floor(base, 9))
  if version_newer(version, floor) and (ARGV[6] ~= '1' or flight_read(row) == owner) then
    redis.call('SET', row, frame, 'PX', ARGV[5])
    tags_note(base, 9, version, ARGV[8])
    stored = 1
  end
end
flight_end(base, id, stored == 1 and 'filled' or 'released', owner)
-- Also when it is too old: what has come before it may have told nobody.
if ARGV[7] == '1' then redis.call('PUBLISH', base .. 'coh', id .. ':' .. version_top(there, version)) end
return stored
