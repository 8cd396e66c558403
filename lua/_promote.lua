-- Bring due jobs from the schedule back to where they wait; answers how many.
local function promote_due(base, now, limit)
  local due = redis.call('ZRANGEBYSCORE', base .. 'schedule', '-inf', now, 'LIMIT', 0, limit)
  local promoted = 0
  for _, id in ipairs(due) do
    local row = base .. 'job:' .. id
    local fields = row_read(row, 'state', 'group', 'priority', 'group_limit', 'group_name')
    redis.call('ZREM', base .. 'schedule', id)
    -- An id whose row was deleted by hand must not come back as an empty job.
    if fields[1] then
      redis.call('HSET', row, 'state', 'pending')
      place_waiting(base, id, fields[2], fields[3], fields[4], fields[5])
      promoted = promoted + 1
    end
  end
  return promoted
end
