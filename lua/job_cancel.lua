#!lua flags=allow-oom
-- Cancel a job: one that waits is removed; one that runs is asked to stop, and will not be run again if it does not.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id; last the caller's wishes (see _event)
-- RETURNS: "removed", "requested", "ended" (it is dead) or "gone"
-- ERRORS: EMQKIND
-- WRITES: row.cancel | pending | g:<group>:pending, ring | schedule; row and its side keys; de:<dedup id>; flow: the parent's keys or flow:outbox; announces
-- COST: O(log n)
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _settle
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
-- @include _forget
local call = event_begin()
local refusal = settle_kinds(1, 1)
if refusal then return refusal end

local base, id = KEYS[1], ARGV[1]
local row = base .. 'job:' .. id
local fields = row_read(row, 'state', 'group')
if not fields[1] then return 'gone' end
if redis.call('ZSCORE', base .. 'dead', id) then return 'ended' end
if redis.call('ZSCORE', base .. 'active', id) then
  redis.call('HSET', row, 'cancel', '1')
  return 'requested'
end
place_withdraw(base, id, 'waiting', fields[2])
event_row(base, call, 'cancelled', id)
forget_job(base, id, 'cancelled', call)
return 'removed'
