#!lua flags=no-writes
-- Tell how a log's consumer groups stand.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log
-- RETURNS: per group {name, lag or -1, pending, consumers, last delivered id, lost or -1}, by name
-- ERRORS: none
-- WRITES: nothing
-- COST: O(groups), and a copy of the oldest and the newest record for each that has read nothing of what is kept
-- @include _consumers
local base = KEYS[1]
local key = base .. 'stream:' .. ARGV[1]
local found = {}
for _, row in ipairs(redis.pcall('XINFO', 'GROUPS', key)) do
  local fields = {}
  for at = 1, #row, 2 do fields[row[at]] = row[at + 1] end
  local lag, lost = consumers_standing(key, fields)
  found[#found + 1] = {fields.name, lag, fields.pending, fields.consumers, fields['last-delivered-id'], lost}
end
return found
