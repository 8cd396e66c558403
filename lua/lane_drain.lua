#!lua flags=allow-oom
-- Drop the waiting jobs of one lane with their rows, a bounded number a call; the caller repeats until none is left.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: group, most jobs to drop in this call
-- RETURNS: how many were dropped; fewer than asked for means that none is left
-- ERRORS: none
-- WRITES: g:<group>:pending, ring, rows and their side keys, de:<dedup id>; flow: the parents' keys or flow:outbox
-- COST: O(log n) a job
-- @include _row
-- @include _clock
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
-- @include _forget
local base, group, now = KEYS[1], ARGV[1], clock_ms()
local key = lane_key(base, group)
local popped = redis.call('ZPOPMIN', key, ARGV[2])
-- Before any parent is told, which may come to wait in this lane and bring it back into the ring.
if redis.call('EXISTS', key) == 0 then
  redis.call('LREM', base .. 'ring', 0, group)
  lane_end(base, group)
end
for i = 1, #popped, 2 do forget_job(base, popped[i], 'drained', now) end
return #popped / 2
