#!lua flags=no-writes
-- Look at lanes: how many jobs wait and run in each, and its settings.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: groups
-- RETURNS: per group {name or "", waiting, active, limit or -1, weight, paused 0 | 1}
-- ERRORS: none
-- WRITES: nothing
-- COST: O(1) a group
-- @include _row
-- @include _wake
-- @include _lane
local base, lanes = KEYS[1], {}
for i, group in ipairs(ARGV) do
  local limit = redis.call('HGET', base .. 'glimit', group)
  lanes[i] = {
    redis.call('HGET', base .. 'gnames', group) or '',
    redis.call('ZCARD', lane_key(base, group)),
    row_count(redis.call('HGET', base .. 'gactive', group)),
    -- What is no number is no limit to a claim either.
    tonumber(limit) and math.max(row_count(limit), 0) or -1,
    math.max(row_count(redis.call('HGET', base .. 'gweight', group) or 1), 1),
    redis.call('SISMEMBER', base .. 'paused', group),
  }
end
return lanes
