#!lua flags=allow-oom
-- Remove a job that no worker holds, from wherever it waits, with its row and everything beside it.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id, "dead" to remove it only as a dead job (optional); last the caller's wishes (see _event)
-- RETURNS: "ok" or "gone"
-- ERRORS: EMQKIND, EMQLOCK, EMQSTATE
-- WRITES: pending | g:<group>:pending, ring | schedule | dead | active, gactive; row and its side keys; de:<dedup id>; flow: the parent's keys or flow:outbox; announces
-- COST: O(log n)
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _settle
-- @include _lock
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
-- @include _forget
local call = event_begin()
local refusal = settle_kinds(1, 2)
if refusal then return refusal end

local base, id = KEYS[1], ARGV[1]
local row = base .. 'job:' .. id
local fields = row_read(row, 'state', 'group', 'lock')
local held = lock_refusal(row, id, fields[3])
if held then return held end
if not fields[1] then return 'gone' end
if ARGV[2] == 'dead' and not redis.call('ZSCORE', base .. 'dead', id) then
  return redis.error_reply('EMQSTATE ' .. id .. ' is ' .. fields[1] .. ', not dead')
end
-- An active job without a lock has outlived its lease: it is taken out as one that waits.
place_withdraw(base, id, 'waiting', fields[2])
event_row(base, call, 'removed', id)
forget_job(base, id, 'removed', call)
-- It may have been an active one that outlived its lease.
wake_room(base, 1)
return 'ok'
