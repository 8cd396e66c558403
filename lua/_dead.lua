-- Bury a job that is in no set any more: the row stays, with its error and the time.
local function dead_bury(base, id, reason, now)
  local row = base .. 'job:' .. id
  local fields = row_read(row, 'parent', 'parent_queue', 'parent_policy', 'unique')
  if fields[4] then unique_release(base, id) end
  redis.call('HSET', row, 'state', 'dead', 'last_error', reason, 'died', now)
  redis.call('ZADD', base .. 'dead', 0, id)
  redis.call('HINCRBY', base .. 'metrics:failed', 'count', 1)
  if fields[1] then flow_died(base, id, fields[1], fields[2], fields[3], reason, now) end
end
