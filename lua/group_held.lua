#!lua flags=no-writes
-- Tell which entries a consumer has been given and has neither finished nor lost to another.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, consumer, the entry id to go on behind ("" = from the first), most ids
-- RETURNS: {} without the group; else {{entry id, ...}}
-- ERRORS: none
-- WRITES: nothing
-- COST: O(groups + ids)
-- @include _consumers
local base, group, consumer = KEYS[1], ARGV[2], ARGV[3]
local key = base .. 'stream:' .. ARGV[1]
if not consumers_group(key, group) then return {} end
local ids = {}
local behind = ARGV[4] == '' and '-' or '(' .. ARGV[4]
for i, held in ipairs(redis.call('XPENDING', key, group, behind, '+', ARGV[5], consumer)) do ids[i] = held[1] end
return {ids}
