#!lua flags=allow-oom
-- Drop the waiting jobs of one lane with their rows, a bounded number a call; the caller repeats until none is left.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, group, most jobs to drop in this call; last the caller's wishes (see _event)
-- RETURNS: how many were dropped; fewer than asked for means that none is left
-- ERRORS: none
-- WRITES: replies; g:<group>:pending, ring, rows and their side keys, de:<dedup id>; flow: the parents' keys or flow:outbox; announces
-- COST: O(log n) a job
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
-- @include _forget
-- @include _mark
local call = event_begin()
local base, group, most = KEYS[1], ARGV[3], tonumber(ARGV[4])
-- Sent again after its answer was lost: the caller must not lose count of what is gone.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if answered or late then return tonumber(answered and answered[1]) or 0 end
local key = lane_key(base, group)
local popped = redis.call('ZPOPMIN', key, most)
-- Before any parent is told, which may come to wait in this lane and bring it back into the ring.
if redis.call('EXISTS', key) == 0 then
  redis.call('LREM', base .. 'ring', 0, group)
  lane_end(base, group)
end
for i = 1, #popped, 2 do forget_job(base, popped[i], 'drained', call) end
local dropped = #popped / 2
event_drained(base, call, dropped, most, ',"group":"' .. group .. '"')
mark_write(base, ARGV[1], ARGV[2], tostring(dropped))
return dropped
