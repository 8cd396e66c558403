#!lua flags=allow-oom
-- Drop all rows of a tag under a version newer than any of them, or apply a message that says so.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: TAG id, version, "drop" or "apply", ms that the versions of tags are kept
-- RETURNS: the version under which the tag is dropped now
-- ERRORS: none
-- WRITES: tag:<TAG id>; it publishes on coh
-- COST: O(1)
-- @include _order
-- @include _version
local base, id, version = KEYS[1], ARGV[1], ARGV[2]
local key = base .. 'tag:' .. id
local dropped = version_at(key)
if ARGV[3] == 'apply' then
  if not version_newer(version, dropped) then return dropped end
else
  -- The same once more is sent again after its answer was lost; or the lane has told it before, which heeds no rows and
  -- tells nobody else.
  local top = version_at(base .. 'tag:top')
  version = version_above(version, dropped ~= version and version_top(dropped, top) or top)
  redis.call('PUBLISH', base .. 'coh', id .. ':' .. version)
end
redis.call('SET', key, version, 'PX', ARGV[4])
return version
