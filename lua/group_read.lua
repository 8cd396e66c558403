#!lua flags=allow-oom
-- Deliver new entries to a consumer, and tell how many the group has lost to the trim before it read them.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, consumer, most entries
-- RETURNS: {} without the group; else {lost or -1, the group's last delivered id before this call, {{entry id, fields}, ...}}
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(groups + entries), and a copy of the oldest and the newest record when all that is kept is unread
-- @include _consumers
local base, group, consumer = KEYS[1], ARGV[2], ARGV[3]
local key = base .. 'stream:' .. ARGV[1]
local fields = consumers_group(key, group)
if not fields then return {} end
-- Looked at in the same step as the read, which passes over the gap: the next look would see nothing of it.
local _, lost = consumers_standing(key, fields)
local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', ARGV[4], 'STREAMS', key, '>')
return {lost, fields['last-delivered-id'], found and found[1][2] or {}}
