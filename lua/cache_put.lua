#!lua
-- Put a value in place of whatever there is, under a version newer than all of it, and tell all caches.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: id, a version minted just now, value, ttl ms, ms that a dropped version is kept, ms that the versions of tags are kept, TAG ids of the row
-- RETURNS: the version it has: the given one, or one just above what was there
-- ERRORS: none
-- WRITES: the row, <id>:dropped, <id>:flight, tag:top; it publishes on coh and wake
-- COST: O(tags)
-- @include _order
-- @include _version
-- @include _tags
-- @include _flight
local base, id, version, ttl, kept = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local row = base .. id
local there = version_at(row)
-- Sent again after its answer was lost.
if there == version and redis.call('GET', row) == version .. ARGV[3] then return version end
local _, loading = flight_read(row)
local floor = version_top(version_top(there, version_at(row .. ':dropped')), version_top(loading, tags_floor(base, 7)))
version = version_above(version, floor)
redis.call('SET', row, version .. ARGV[3], 'PX', ttl)
-- A row that ends before a load that began before it must not leave room for what that has loaded.
if ttl < kept then redis.call('SET', row .. ':dropped', version, 'PX', kept) end
tags_note(base, 7, version, ARGV[6])
flight_detach(base, id, 'filled')
redis.call('PUBLISH', base .. 'coh', id .. ':' .. version)
return version
