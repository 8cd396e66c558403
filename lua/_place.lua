-- Where a job waits, and how it leaves and comes back.

-- Put a job where it waits: its lane when it has a group, else pending; its priority is its score. `limit` and `name` are
-- what it brings for its lane, if anything.
local function place_waiting(base, id, group, priority, limit, name)
  -- Whatever is no number would stop the script at ZADD, with the job in no set.
  local score = row_count(priority)
  if group then
    local key = lane_key(base, group)
    if limit then lane_default_limit(base, group, limit) end
    -- For people only: a key of another type must not keep a job from its place.
    if name then redis.pcall('HSET', base .. 'gnames', group, name) end
    -- A lane that had jobs already is in the ring, or out of it for a reason that this job does not change.
    if redis.call('ZADD', key, score, id) == 1 and redis.call('ZCARD', key) == 1 then lane_serviceable(base, group, true) end
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
  if group and redis.call('ZREM', lane_key(base, group), id) == 1 and redis.call('EXISTS', lane_key(base, group)) == 0 then
    redis.call('LREM', base .. 'ring', 0, group)
    lane_end(base, group)
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
  local fields = row_read(row, 'state', 'group', 'priority', 'group_limit', 'group_name', 'unique')
  redis.call('ZREM', base .. 'active', id)
  if not fields[1] then return false end
  place_unlock(row)
  redis.call('HSET', row, 'state', 'pending')
  if fields[6] == 'start' then unique_retake(base, id) end
  place_waiting(base, id, fields[2], fields[3], fields[4], fields[5])
  if fields[2] then lane_release(base, fields[2]) end
  return true
end

-- Count the running jobs of all lanes anew: rows that were deleted by hand took the names of their lanes with them.
local function place_recount(base)
  local counts = {}
  for _, id in ipairs(redis.call('ZRANGE', base .. 'active', 0, -1)) do
    local group = row_read(base .. 'job:' .. id, 'group')[1]
    if group then counts[group] = (counts[group] or 0) + 1 end
  end
  for _, group in ipairs(redis.call('HKEYS', base .. 'gactive')) do
    if counts[group] then
      redis.call('HSET', base .. 'gactive', group, counts[group])
    else
      redis.call('HDEL', base .. 'gactive', group)
    end
    if lane_serviceable(base, group) then wake(base, 1) end
    lane_end(base, group)
  end
end
