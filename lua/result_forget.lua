#!lua flags=allow-oom
-- Drop a result before its time.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id
-- RETURNS: 1, or 0 when there was none
-- ERRORS: EMQKIND
-- WRITES: row:result
-- COST: O(1)
-- @include _settle
local refusal = settle_kinds(1, 1)
if refusal then return refusal end

local key = KEYS[1] .. 'job:' .. ARGV[1] .. ':result'
return redis.call('DEL', key)
