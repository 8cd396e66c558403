#!lua flags=allow-oom
-- Bring jobs whose lease ran out back to where they wait.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: most jobs to reap in this call; last the caller's wishes (see _event)
-- RETURNS: how many were reaped
-- ERRORS: none
-- WRITES: active, gactive, row.state, pending | g:<group>:pending, ring, wake; announces
-- COST: O(log n) a job; O(active) when the row of one was deleted by hand
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
local call = event_begin()
local base, reaped, recount = KEYS[1], 0, false
for _, id in ipairs(place_expired(base, event_now(call), tonumber(ARGV[1]))) do
  if place_back(base, id) then
    reaped = reaped + 1
    event_row(base, call, 'stalled', id)
  else
    recount = true
  end
end
if recount then place_recount(base) end
wake(base, reaped)
return reaped
