-- A queue's counts, as queue_counts answers them; and how many lanes hold a waiting job.
local function counts_of(base)
  local in_lanes, lanes = 0, 0
  for _, group in ipairs(groups_of(base)) do
    local depth = redis.call('ZCARD', base .. 'g:' .. group .. ':pending')
    in_lanes = in_lanes + depth
    if depth > 0 then lanes = lanes + 1 end
  end
  -- Those that another runtime has set going meanwhile are still listed.
  local awaiting = redis.call('ZCARD', base .. 'flow:parents')
  for _, id in ipairs(redis.call('ZRANGE', base .. 'flow:parents', 0, 199)) do
    if row_read(base .. 'job:' .. id, 'state')[1] ~= 'awaiting_children' then awaiting = awaiting - 1 end
  end
  local paused = redis.call('HGET', base .. 'meta', 'paused')
  return {
    redis.call('ZCARD', base .. 'pending'),
    in_lanes,
    redis.call('ZCARD', base .. 'active'),
    redis.call('ZCARD', base .. 'schedule'),
    redis.call('ZCARD', base .. 'dead'),
    row_count(redis.call('HGET', base .. 'metrics:completed', 'count')),
    row_count(redis.call('HGET', base .. 'metrics:failed', 'count')),
    (paused and paused ~= '0') and 1 or 0,
    awaiting,
  }, lanes
end
