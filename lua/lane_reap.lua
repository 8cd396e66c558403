#!lua flags=allow-oom
-- Bring jobs of one group whose lease ran out back to where they wait, a bounded number of looks a call.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: group, most jobs to reap in this call, most to look at, how many of the expired ones to pass over; last the caller's wishes (see _event)
-- RETURNS: {how many were reaped, how many were looked at}
-- ERRORS: none
-- WRITES: active, gactive, row.state, g:<group>:pending, ring, wake; announces
-- COST: O(passed over + log n a job looked at)
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
local base, group, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
local looked, reaped = 0, 0
-- The expired ones of all groups are in one set, by the end of their leases.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. 'active', '-inf', event_now(call), 'LIMIT', ARGV[4], ARGV[3])) do
  if reaped >= most then break end
  looked = looked + 1
  if row_read(base .. 'job:' .. id, 'group')[1] == group and place_back(base, id) then
    reaped = reaped + 1
    event_row(base, call, 'stalled', id)
  end
end
wake(base, reaped)
return {reaped, looked}
