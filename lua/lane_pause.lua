#!lua flags=allow-oom
-- Pause a lane: its jobs wait, the others are served.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: group, its name or ""; last the caller's wishes (see _event)
-- RETURNS: 1, or 0 when it was paused already
-- ERRORS: none
-- WRITES: paused, gnames, ring; announces
-- COST: O(lanes in the ring)
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
local call = event_begin()
local base, group = KEYS[1], ARGV[1]
local changed = redis.call('SADD', base .. 'paused', group)
if ARGV[2] ~= '' then redis.call('HSET', base .. 'gnames', group, ARGV[2]) end
redis.call('LREM', base .. 'ring', 0, group)
if changed == 1 and event_wanted(call, 'paused') then
  event_say(base, call, 'paused', nil, ',"group":"' .. group .. '"')
end
return changed
