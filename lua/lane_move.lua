#!lua flags=allow-oom
-- Move a waiting job into a lane, or out of its lane to those that have none; its priority stays.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id, group ("" = flat), its name or ""
-- RETURNS: "ok" or "gone"
-- ERRORS: EMQKIND, EMQLOCK, EMQSTATE
-- WRITES: pending | g:<group>:pending, ring (of both lanes), row.group, gnames, wake
-- COST: O(log n + lanes in the ring)
-- @include _row
-- @include _settle
-- @include _lock
-- @include _wake
-- @include _lane
-- @include _mend
local refusal = settle_kinds(1, 3)
if refusal then return refusal end

local base, id, group = KEYS[1], ARGV[1], ARGV[2]
local row = base .. 'job:' .. id
local fields = row_read(row, 'state', 'group', 'lock')
local held = lock_refusal(row, id, fields[3])
if held then return held end
if not fields[1] then return 'gone' end

local from = fields[2] or ''
local score = from ~= '' and redis.call('ZSCORE', lane_key(base, from), id)
if not score then
  from = ''
  score = redis.call('ZSCORE', base .. 'pending', id)
end
if not score then
  return redis.error_reply('EMQSTATE ' .. id .. ' is ' .. fields[1] .. ': only a job that waits can change its lane')
end
if from == '' then
  redis.call('ZREM', base .. 'pending', id)
else
  redis.call('ZREM', lane_key(base, from), id)
end
if group == '' then
  redis.call('HDEL', row, 'group', 'group_limit', 'group_name')
  redis.call('ZADD', base .. 'pending', score, id)
  wake(base, 1)
else
  redis.call('HSET', row, 'group', group)
  -- They were for the lane that it leaves.
  if from ~= group then redis.call('HDEL', row, 'group_limit', 'group_name') end
  if ARGV[3] ~= '' then
    redis.call('HSET', row, 'group_name', ARGV[3])
    redis.pcall('HSET', base .. 'gnames', group, ARGV[3])
  end
  redis.call('ZADD', lane_key(base, group), score, id)
  mend_ring(base, group)
end
-- Last, so that a move within one lane leaves it where it is in the ring.
if from ~= '' and redis.call('EXISTS', lane_key(base, from)) == 0 then
  redis.call('LREM', base .. 'ring', 0, from)
  lane_end(base, from)
end
return 'ok'
