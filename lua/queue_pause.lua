#!lua flags=allow-oom
-- Pause a queue: nothing is claimed until it is resumed; what runs is finished, and admissions go on.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: the caller's wishes (see _event)
-- RETURNS: 1, or 0 when it was paused already
-- ERRORS: none
-- WRITES: meta.paused; announces
-- COST: O(1)
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
local call = event_begin()
local base = KEYS[1]
local paused = redis.call('HGET', base .. 'meta', 'paused')
if paused and paused ~= '0' then return 0 end
redis.call('HSET', base .. 'meta', 'paused', '1')
if event_wanted(call, 'paused') then event_say(base, call, 'paused', nil, '') end
return 1
