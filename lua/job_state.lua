#!lua flags=no-writes
-- Tell which set or lane holds a job.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id
-- RETURNS: "pending", "active", "scheduled", "dead", "awaiting_children", "unknown" or "absent"
-- ERRORS: EMQKIND
-- WRITES: nothing
-- COST: O(log n)
-- @include _row
-- @include _settle
-- @include _state
local refusal = settle_kinds(1, 1)
if refusal then return refusal end
return state_of(KEYS[1], ARGV[1])
