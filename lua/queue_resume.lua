#!lua flags=allow-oom
-- Resume a paused queue, and wake workers for what waits.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: 1, or 0 when it was not paused
-- ERRORS: none
-- WRITES: meta.paused, wake
-- COST: O(1)
-- @include _row
-- @include _wake
-- @include _lane
-- @include _rouse
local base = KEYS[1]
local paused = redis.call('HGET', base .. 'meta', 'paused')
redis.call('HDEL', base .. 'meta', 'paused')
if not paused or paused == '0' then return 0 end
rouse(base)
return 1
