#!lua flags=allow-oom
-- Bring due jobs from the schedule back to where they wait.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: most jobs to promote in this call
-- RETURNS: how many were promoted
-- ERRORS: none
-- WRITES: schedule, row.state, pending | g:<group>:pending, ring, wake
-- COST: O(log n) a job
-- @include _row
-- @include _clock
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _promote
local base = KEYS[1]
local promoted = promote_due(base, clock_ms(), tonumber(ARGV[1]))
wake(base, promoted)
return promoted
