#!lua flags=allow-oom
-- Answer a row, or let the caller lead the flight that is to load it, or follow the one that does.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: id, owner, lease ms, a version minted just now, least ms that a row must have left, ms that a flight is known beyond its lease, ms that the versions of tags are kept, TAG ids of the row
-- RETURNS: {"hit", frame, ms left (-1 = for ever)}, {"lead", the version to load under}, or {"follow", owner, ms left of the lease}
-- ERRORS: none
-- WRITES: <id>:flight, tag:top; it publishes on wake
-- COST: O(tags)
local base, id, owner, lease, least = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
-- Asked for, no row has so much left, not even one without an end.
local always = 9007199254740992
local row = base .. id
local frame = redis.pcall('GET', row)
-- Most claims find a row without tags of which nothing was dropped. They are answered before the functions below are even
-- made, in half the time. A version that begins with a digit is surely none of those past the last one.
if not ARGV[8] and type(frame) == 'string' and string.find(frame, '^%u%u%u%d%w%w%w%w%w%w%w%w%w%w')
  and redis.call('EXISTS', row .. ':dropped') == 0 then
  local left = redis.call('PTTL', row)
  if left >= least or left == -1 and least < always then return {'hit', frame, left} end
end

-- @include _clock
-- @include _order
-- @include _version
-- @include _tags
-- @include _flight
local version = version_of(frame)
-- Also of a row: one that another runtime wrote may be older than what was dropped here.
local floor = version_top(version_at(row .. ':dropped'), tags_floor(base, 8))
if version and not (floor and version_newer(floor, version)) then
  local left = redis.call('PTTL', row)
  if left >= least or left == -1 and least < always then return {'hit', frame, left} end
end

local now = clock_ms()
local holder, loading, awaited, deadline = flight_read(row)
-- A flight from before the row or one of its tags was dropped is of no use to those who come now.
if holder and holder ~= owner then
  if deadline > now and version_newer(loading, floor) then
    if not awaited then flight_await(row) end
    return {'follow', holder, deadline - now}
  end
  flight_detach(base, id, 'dropped')
  awaited = false
end
-- The leader who asks again has not heard the answer, and is given the same.
local below = version_top(floor, version)
local led = holder == owner and version_newer(loading, below) and loading
  or version_above(ARGV[4], version_top(below, loading))
flight_write(row, led, awaited, now + lease, owner, lease + tonumber(ARGV[6]))
tags_note(base, 8, led, ARGV[7])
return {'lead', led}
