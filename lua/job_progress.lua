#!lua
-- Note how far a job is, and tell those who listen.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id, progress
-- RETURNS: "ok" or "gone"
-- ERRORS: EMQKIND
-- WRITES: row.progress; publishes on the channel events
-- COST: O(1)
-- @include _settle
local refusal = settle_kinds(1, 2)
if refusal then return refusal end

local base = KEYS[1]
local row = base .. 'job:' .. ARGV[1]
if redis.call('EXISTS', row) == 0 then return 'gone' end
-- First, because it is what a user without rights on the channel is refused.
redis.call('PUBLISH', base .. 'events', cjson.encode({event = 'progress', job = ARGV[1], progress = ARGV[2]}))
redis.call('HSET', row, 'progress', ARGV[2])
return 'ok'
