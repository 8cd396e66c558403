-- Flows: what a parent learns when one of its children ends. A parent in another queue is told through the outbox.

local function flow_queue(base)
  return string.sub(base, 6, -3)
end

-- One child less to wait for; the last one makes the parent runnable.
local function flow_satisfy(base, parent)
  local key = base .. 'job:' .. parent .. ':dependencies'
  -- Without its count a parent is held: run early it would miss results.
  if redis.call('EXISTS', key) == 0 or redis.call('DECR', key) > 0 then return end
  local row = base .. 'job:' .. parent
  local fields = row_read(row, 'state', 'group', 'priority')
  if fields[1] ~= 'awaiting_children' then return end
  redis.call('HSET', row, 'state', 'pending')
  place_waiting(base, parent, fields[2], fields[3])
  wake(base, 1)
end

-- A child completed. HSETNX guards against a second delivery of the same fact.
local function flow_completed(base, child, parent, parent_queue, result)
  if parent_queue and parent_queue ~= flow_queue(base) then
    redis.call('RPUSH', base .. 'flow:outbox', table.concat({parent_queue, parent, child, result}, '\0'))
    return
  end
  if redis.call('EXISTS', base .. 'job:' .. parent) == 0 then return end
  if redis.call('HSETNX', base .. 'job:' .. parent .. ':processed', child, result) == 1 then
    flow_satisfy(base, parent)
  end
end

-- A child died. Policy `id` counts it as satisfied; `fp` kills the parent too, level by level (at most 8).
local function flow_died(base, child, parent, parent_queue, policy, reason)
  for _ = 1, 8 do
    if not parent then return end
    policy = policy or 'fp'
    if parent_queue and parent_queue ~= flow_queue(base) then
      redis.call('RPUSH', base .. 'flow:outbox',
        table.concat({'', 'fail', parent_queue, parent, child, policy, reason}, '\0'))
      return
    end
    local row = base .. 'job:' .. parent
    local fields = row_read(row, 'state', 'parent', 'parent_queue', 'parent_policy')
    if not fields[1] then return end
    if policy == 'id' then
      if redis.call('HSETNX', row .. ':unsuccessful', child, reason) == 1 then flow_satisfy(base, parent) end
      return
    end
    redis.call('HSET', row .. ':failed', child, reason)
    if fields[1] ~= 'awaiting_children' then return end
    reason = 'child ' .. child .. ' failed: ' .. reason
    redis.call('HSET', row, 'state', 'dead', 'last_error', reason)
    redis.call('ZADD', base .. 'dead', 0, parent)
    redis.call('HINCRBY', base .. 'metrics:failed', 'count', 1)
    child, parent, parent_queue, policy = parent, fields[2], fields[3], fields[4]
  end
end
