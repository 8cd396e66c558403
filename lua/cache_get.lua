#!lua flags=no-writes
-- Answer a row, or its version alone, and claim nothing.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: id, "version" or "row", TAG ids of the row
-- RETURNS: the version; or {frame, ms left (-1 = for ever)}; nil when there is none that is newer than what was dropped
-- ERRORS: none
-- WRITES: nothing
-- COST: O(tags)
local base = KEYS[1]
local row = base .. ARGV[1]
-- Where no cluster is, rows are mostly looked for by plain commands (echomq_tasks/cache/looking.py): what is too old here
-- has to be too old there.
-- As in cache_claim: most rows have no tags, and nothing was dropped of them.
if ARGV[2] == 'row' and not ARGV[3] then
  local frame = redis.pcall('GET', row)
  if not frame then return nil end
  if type(frame) == 'string' and string.find(frame, '^%u%u%u%d%w%w%w%w%w%w%w%w%w%w')
    and redis.call('EXISTS', row .. ':dropped') == 0 then
    return {frame, redis.call('PTTL', row)}
  end
end

-- @include _order
-- @include _version
-- @include _tags
local version = version_at(row)
if not version then return nil end
local floor = version_top(version_at(row .. ':dropped'), tags_floor(base, 3))
if floor and version_newer(floor, version) then return nil end
if ARGV[2] == 'version' then return version end
return {redis.call('GET', row), redis.call('PTTL', row)}
