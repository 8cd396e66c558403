#!lua flags=no-writes
-- Tell whether a running job was asked to stop.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id
-- RETURNS: 1 or 0
-- ERRORS: EMQKIND
-- WRITES: nothing
-- COST: O(1)
-- @include _row
-- @include _settle
local refusal = settle_kinds(1, 1)
if refusal then return refusal end
return row_read(KEYS[1] .. 'job:' .. ARGV[1], 'cancel')[1] and 1 or 0
