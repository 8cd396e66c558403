#!lua flags=allow-oom
-- Drop consumers that hold nothing and have not been heard of for long.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, ms without a sign of life, the one consumer to drop ("" = any)
-- RETURNS: the names of those that were dropped
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(groups + consumers)
-- @include _consumers
local base, group, idle, only = KEYS[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local key = base .. 'stream:' .. ARGV[1]
local dropped = {}
if not consumers_group(key, group) then return dropped end
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
  local fields = {}
  for at = 1, #row, 2 do fields[row[at]] = row[at + 1] end
  if fields.pending == 0 and fields.idle >= idle and (only == '' or only == fields.name) then
    redis.call('XGROUP', 'DELCONSUMER', key, group, fields.name)
    dropped[#dropped + 1] = fields.name
  end
end
return dropped
