#!lua flags=no-writes
-- Read the last lines of a job's log.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id, most lines to read
-- RETURNS: lines, oldest first
-- ERRORS: EMQKIND
-- WRITES: nothing
-- COST: O(lines read)
-- @include _settle
local refusal = settle_kinds(1, 2)
if refusal then return refusal end

local base = KEYS[1]
return redis.call('LRANGE', base .. 'job:' .. ARGV[1] .. ':logs', -tonumber(ARGV[2]), -1)
