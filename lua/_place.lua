-- Where a job waits, and how it leaves and comes back.

-- Put a job where it waits: its lane when it has a group, else pending; its priority is its score.
local function place_waiting(base, id, group, priority)
  -- Whatever is no number would stop the script at ZADD, with the job in no set.
  local score = row_count(priority)
  if group then
    redis.call('ZADD', lane_key(base, group), score, id)
    lane_serviceable(base, group)
  else
    redis.call('ZADD', base .. 'pending', score, id)
  end
end

-- Give the lock marker back, in either of its two forms.
local function place_unlock(row)
  redis.call('HDEL', row, 'lock')
  redis.call('DEL', row .. ':lock')
end

-- Take a job out of active, or out of wherever it waits when it was reaped, promoted or settled meanwhile.
local function place_withdraw(base, id, state, group)
  if redis.call('ZREM', base .. 'active', id) == 1 then
    if group then lane_release(base, group) end
    return
  end
  if state == 'active' then return end
  if group then
    redis.call('ZREM', lane_key(base, group), id)
    if redis.call('EXISTS', lane_key(base, group)) == 0 then redis.call('LREM', base .. 'ring', 0, group) end
  end
  redis.call('ZREM', base .. 'pending', id)
  redis.call('ZREM', base .. 'schedule', id)
  redis.call('ZREM', base .. 'dead', id)
end

-- Up to `limit` ids of active jobs whose lease is over.
local function place_expired(base, now, limit)
  return redis.call('ZRANGEBYSCORE', base .. 'active', '-inf', now, 'LIMIT', 0, limit)
end

-- Return an active job to where it waits; false when its row is gone.
local function place_back(base, id)
  local row = base .. 'job:' .. id
  local fields = row_read(row, 'state', 'group', 'priority')
  redis.call('ZREM', base .. 'active', id)
  if not fields[1] then return false end
  place_unlock(row)
  redis.call('HSET', row, 'state', 'pending')
  place_waiting(base, id, fields[2], fields[3])
  if fields[2] then lane_release(base, fields[2]) end
  return true
end
