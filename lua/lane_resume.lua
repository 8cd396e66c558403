#!lua flags=allow-oom
-- Resume a paused lane: it is served again when it holds a job and is below its limit.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: group; last the caller's wishes (see _event)
-- RETURNS: 1, or 0 when it was not paused
-- ERRORS: none
-- WRITES: paused, ring, wake; announces
-- COST: O(lanes in the ring)
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _wake
-- @include _lane
-- @include _mend
local call = event_begin()
local base, group = KEYS[1], ARGV[1]
local changed = redis.call('SREM', base .. 'paused', group)
mend_ring(base, group)
lane_end(base, group)
if changed == 1 and event_wanted(call, 'resumed') then
  event_say(base, call, 'resumed', nil, ',"group":"' .. group .. '"')
end
return changed
