#!lua flags=allow-oom
-- Resume a paused queue, and wake workers for what waits.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: the caller's wishes (see _event)
-- RETURNS: 1, or 0 when it was not paused
-- ERRORS: none
-- WRITES: meta.paused, wake; announces
-- COST: O(1)
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _wake
-- @include _lane
-- @include _rouse
local call = event_begin()
local base = KEYS[1]
local paused = redis.call('HGET', base .. 'meta', 'paused')
redis.call('HDEL', base .. 'meta', 'paused')
if not paused or paused == '0' then return 0 end
rouse(base)
if event_wanted(call, 'resumed') then event_say(base, call, 'resumed', nil, '') end
return 1
