#!lua flags=no-writes
-- Count a queue's jobs per state in one look.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: {pending, in lanes, active, scheduled, dead, completed so far, failed so far, paused 0 | 1}
-- ERRORS: none
-- WRITES: nothing
-- COST: O(lanes)
-- @include _groups
local base = KEYS[1]
local in_lanes = 0
for _, group in ipairs(groups_of(base)) do
  in_lanes = in_lanes + redis.call('ZCARD', base .. 'g:' .. group .. ':pending')
end
local paused = redis.call('HGET', base .. 'meta', 'paused')
return {
  redis.call('ZCARD', base .. 'pending'),
  in_lanes,
  redis.call('ZCARD', base .. 'active'),
  redis.call('ZCARD', base .. 'schedule'),
  redis.call('ZCARD', base .. 'dead'),
  tonumber(redis.call('HGET', base .. 'metrics:completed', 'count') or 0),
  tonumber(redis.call('HGET', base .. 'metrics:failed', 'count') or 0),
  (paused and paused ~= '0') and 1 or 0,
}
