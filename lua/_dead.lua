-- Bury a job that is in no set any more: the row stays, with its error.
local function dead_bury(base, id, reason)
  local row = base .. 'job:' .. id
  local flow = row_read(row, 'parent', 'parent_queue', 'parent_policy')
  redis.call('HSET', row, 'state', 'dead', 'last_error', reason)
  redis.call('ZADD', base .. 'dead', 0, id)
  redis.call('HINCRBY', base .. 'metrics:failed', 'count', 1)
  if flow[1] then flow_died(base, id, flow[1], flow[2], flow[3], reason) end
end
