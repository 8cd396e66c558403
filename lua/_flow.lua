-- Flows: what a parent learns when one of its children ends. A parent in another queue is told through the outbox.
-- The keys beside a parent's row are written with pcall: one of another type must not stop the child's end halfway.

local function flow_queue(base)
  return string.sub(base, 6, -3)
end

local function flow_owe(base, ...)
  redis.call('RPUSH', base .. 'flow:outbox', table.concat({...}, '\0'))
  -- Whoever takes the token looks, and delivers.
  wake(base, 1)
end

-- One child less to wait for; the last one makes the parent runnable. Placed first: where that fails nothing is counted.
local function flow_satisfy(base, parent)
  local key = base .. 'job:' .. parent .. ':dependencies'
  local left = redis.pcall('GET', key)
  left = type(left) == 'string' and row_whole(left)
  -- Without its count, or with one that is no number, a parent is held: run early it would miss results.
  if not left then return end
  local row = base .. 'job:' .. parent
  local fields = row_read(row, 'state', 'group', 'priority', 'group_limit', 'group_name')
  if left <= 1 and fields[1] == 'awaiting_children' then
    place_waiting(base, parent, fields[2], fields[3], fields[4], fields[5])
    redis.call('HSET', row, 'state', 'pending')
    redis.call('ZREM', base .. 'flow:parents', parent)
    wake(base, 1)
  end
  redis.pcall('DECR', key)
end

-- Whether a child is in that hash of its parent; true also of a key of another type, on which nothing can be noted.
local function flow_knows(key, child)
  return redis.pcall('HEXISTS', key, child) ~= 0
end

-- A child completed. Noted last, it guards against a second delivery of the same fact; one that died before, and was
-- ignored, is counted already.
local function flow_completed(base, child, parent, parent_queue, result)
  if parent_queue and parent_queue ~= flow_queue(base) then
    flow_owe(base, parent_queue, parent, child, result)
    return
  end
  local row = base .. 'job:' .. parent
  if redis.call('EXISTS', row) == 0 or flow_knows(row .. ':processed', child) then return end
  if not flow_knows(row .. ':unsuccessful', child) then flow_satisfy(base, parent) end
  redis.call('HSET', row .. ':processed', child, result)
end

-- Put a job among the dead: the row stays, with its error and the time.
local function flow_bury(base, id, reason, call)
  redis.call('HSET', base .. 'job:' .. id, 'state', 'dead', 'last_error', reason, 'died', event_now(call))
  redis.call('ZADD', base .. 'dead', 0, id)
  redis.call('HINCRBY', base .. 'metrics:failed', 'count', 1)
end

-- A child died. Policy `id` counts it as satisfied; `fp` kills the parent too, level by level (at most 8).
local function flow_died(base, child, parent, parent_queue, policy, reason, call)
  for _ = 1, 8 do
    if not parent then return end
    policy = policy or 'fp'
    if parent_queue and parent_queue ~= flow_queue(base) then
      flow_owe(base, '', 'fail', parent_queue, parent, child, policy, reason)
      return
    end
    local row = base .. 'job:' .. parent
    local fields = row_read(row, 'state', 'parent', 'parent_queue', 'parent_policy')
    if not fields[1] then return end
    if policy == 'id' then
      -- One that completed after all, told of out of turn, is counted already.
      if flow_knows(row .. ':processed', child) or flow_knows(row .. ':unsuccessful', child) then return end
      flow_satisfy(base, parent)
      redis.call('HSET', row .. ':unsuccessful', child, reason)
      return
    end
    -- A child that died is told of again when it is dropped: then it can never come back.
    redis.pcall('HSET', row .. ':failed', child, reason)
    if fields[1] ~= 'awaiting_children' then return end
    reason = 'child ' .. child .. ' failed: ' .. reason
    flow_bury(base, parent, reason, call)
    event_row(base, call, 'failed', parent, ',"message":' .. event_quote(string.sub(reason, 1, 1000)))
    redis.call('ZREM', base .. 'flow:parents', parent)
    child, parent, parent_queue, policy = parent, fields[2], fields[3], fields[4]
  end
end
