#!lua flags=allow-oom
-- Give a dead job another life: it waits again, for its turn or for its children, without its error and its failures.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id, keep ("1") or replace ("0") the payload, payload; last the caller's wishes (see _event)
-- RETURNS: "ok" or "gone"
-- ERRORS: EMQKIND, EMQSTATE
-- WRITES: dead, row (state, payload; last_error, failures, stalled, died, cancel go), pending | g:<group>:pending, ring, wake | row:failed, flow:parents; de:<dedup id>; announces
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
local call = event_begin()
local refusal = settle_kinds(1, 3)
if refusal then return refusal end

local base, id = KEYS[1], ARGV[1]
local row = base .. 'job:' .. id
local fields = row_read(row, 'state', 'group', 'priority', 'group_limit', 'group_name')
if not redis.call('ZSCORE', base .. 'dead', id) then
  if not fields[1] then return 'gone' end
  return redis.error_reply('EMQSTATE ' .. id .. ' is ' .. fields[1] .. ', not dead')
end
if not fields[1] then
  redis.call('ZREM', base .. 'dead', id)
  return 'gone'
end
local outstanding = redis.pcall('GET', row .. ':dependencies')
local held = type(outstanding) == 'string' and row_count(outstanding) > 0
if held then
  local failed = redis.pcall('HGETALL', row .. ':failed')
  local gone = {removed = true, drained = true, dropped = true, cancelled = true}
  for i = 1, failed.err and 0 or #failed, 2 do
    if gone[failed[i + 1]] then
      return redis.error_reply('EMQSTATE ' .. id .. ' would wait for ever: its child ' .. failed[i] .. ' was ' ..
        failed[i + 1] .. ' and cannot come back; remove it, or add the flow anew')
    end
  end
end
local holder = unique_retake(base, id)
if holder then
  return redis.error_reply('EMQSTATE ' .. id .. ' stays dead while ' .. holder .. ' holds its unique key')
end
redis.call('ZREM', base .. 'dead', id)
redis.call('HDEL', row, 'last_error', 'failures', 'stalled', 'died', 'cancel')
if ARGV[2] == '0' then redis.call('HSET', row, 'payload', ARGV[3]) end
if held then
  -- A flow parent never runs early: it waits again, for the children that are to come back too.
  redis.call('HSET', row, 'state', 'awaiting_children')
  redis.call('DEL', row .. ':failed')
  redis.call('ZADD', base .. 'flow:parents', 0, id)
else
  redis.call('HSET', row, 'state', 'pending')
  place_waiting(base, id, fields[2], fields[3], fields[4], fields[5])
  wake(base, 1)
end
-- Who announces what a hand does, announces this too.
if event_wanted(call, 'hand') then call.names = call.names .. 'enqueued ' end
event_row(base, call, 'enqueued', id)
return 'ok'
