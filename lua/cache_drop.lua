#!lua flags=allow-oom
-- Drop rows under versions newer than all there is of them, so that no load that began before fills them again.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: a version minted just now, ms that a dropped version is kept, ids
-- RETURNS: for each id the version it was dropped under: the given one, or one just above what was there
-- ERRORS: none
-- WRITES: the rows, <id>:dropped, <id>:flight; it publishes on coh and wake
-- COST: O(ids)
-- @include _order
-- @include _version
-- @include _flight
local base, given, versions = KEYS[1], ARGV[1], {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local row = base .. id
  local dropped, there = version_at(row .. ':dropped'), version_at(row)
  local _, loading = flight_read(row)
  local version = given
  -- Where nothing came since, it is sent again after its answer was lost, or was told by the lane before. Whoever did
  -- that may have told nobody else.
  if dropped ~= given or there or loading then
    version = version_above(given, version_top(version_top(there, dropped), loading))
    redis.call('DEL', row)
    redis.call('SET', row .. ':dropped', version, 'PX', ARGV[2])
    flight_detach(base, id, 'dropped')
  end
  redis.call('PUBLISH', base .. 'coh', id .. ':' .. version)
  versions[#versions + 1] = version
end
return versions
