#!lua flags=allow-oom
-- Give a dead job another life: it waits again, with its error and its counts of failures taken off.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id, keep ("1") or replace ("0") the payload, payload
-- RETURNS: "ok" or "gone"
-- ERRORS: EMQKIND, EMQSTATE
-- WRITES: dead, row (state, payload; last_error, failures, stalled go), pending | g:<group>:pending, ring, wake
-- COST: O(log n)
-- @include _row
-- @include _settle
-- @include _wake
-- @include _lane
-- @include _place
local refusal = settle_kinds(1, 3)
if refusal then return refusal end

local base, id = KEYS[1], ARGV[1]
local row = base .. 'job:' .. id
local fields = row_read(row, 'state', 'group', 'priority')
if not redis.call('ZSCORE', base .. 'dead', id) then
  if not fields[1] then return 'gone' end
  return redis.error_reply('EMQSTATE ' .. id .. ' is ' .. fields[1] .. ', not dead')
end
redis.call('ZREM', base .. 'dead', id)
if not fields[1] then return 'gone' end
redis.call('HDEL', row, 'last_error', 'failures', 'stalled')
redis.call('HSET', row, 'state', 'pending')
if ARGV[2] == '0' then redis.call('HSET', row, 'payload', ARGV[3]) end
place_waiting(base, id, fields[2], fields[3])
wake(base, 1)
return 'ok'
