#!lua flags=allow-oom
-- Delete a consumer group with all that it holds pending; the log stays.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group
-- RETURNS: 1, or 0 when there is none
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(groups + pending)
-- @include _consumers
local base, group = KEYS[1], ARGV[2]
local key = base .. 'stream:' .. ARGV[1]
if not consumers_group(key, group) then return 0 end
return redis.call('XGROUP', 'DESTROY', key, group)
