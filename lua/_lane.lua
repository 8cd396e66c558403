-- Lanes: one group's jobs wait in their own zset, and the ring lists the lanes that can be served now.

local function lane_key(base, group)
  return base .. 'g:' .. group .. ':pending'
end

local function lane_headroom(base, group)
  local limit = row_whole(redis.call('HGET', base .. 'glimit', group))
  if not limit then return math.huge end
  return limit - row_count(redis.call('HGET', base .. 'gactive', group))
end

-- Make a lane serviceable: the one rule for when a lane joins the ring. Answers whether it joined. One that was empty
-- until now (`fresh`) is not in the ring, and needs no walk along it.
local function lane_serviceable(base, group, fresh)
  if redis.call('SISMEMBER', base .. 'paused', group) == 1 then return false end
  if redis.call('EXISTS', lane_key(base, group)) == 0 then return false end
  if lane_headroom(base, group) <= 0 then return false end
  if not fresh and redis.call('LPOS', base .. 'ring', group) then return false end
  redis.call('RPUSH', base .. 'ring', group)
  return true
end

-- Set the limit that a job brings along. `gauto` remembers which limits came that way: one that was set by hand, or
-- removed ("-"), is not overruled.
local function lane_default_limit(base, group, limit)
  local set, auto = redis.call('HGET', base .. 'glimit', group), redis.call('HGET', base .. 'gauto', group)
  if set ~= auto or set == limit then return end
  redis.call('HSET', base .. 'glimit', group, limit)
  redis.call('HSET', base .. 'gauto', group, limit)
  if lane_headroom(base, group) <= 0 then
    redis.call('LREM', base .. 'ring', 0, group)
  elseif lane_serviceable(base, group) then
    wake(base, 1)
  end
end

-- Of a lane that is empty and idle only what was set by hand is kept: there may be one for each tenant or order.
local function lane_end(base, group)
  if redis.call('EXISTS', lane_key(base, group)) == 1 or redis.call('HEXISTS', base .. 'gactive', group) == 1 then return end
  local auto = redis.call('HGET', base .. 'gauto', group)
  if auto and redis.call('HGET', base .. 'glimit', group) == auto then
    redis.call('HDEL', base .. 'glimit', group)
    redis.call('HDEL', base .. 'gauto', group)
    auto = false
  end
  if auto or redis.call('HEXISTS', base .. 'glimit', group) == 1 or redis.call('HEXISTS', base .. 'gweight', group) == 1
    or redis.call('SISMEMBER', base .. 'paused', group) == 1 then return end
  redis.pcall('HDEL', base .. 'gnames', group)
end

-- One job of the group stopped running: count it down, drop the count at 0, and look whether the lane can be served.
local function lane_release(base, group)
  local running = row_count(redis.call('HGET', base .. 'gactive', group)) - 1
  if running > 0 then
    redis.call('HSET', base .. 'gactive', group, running)
  else
    redis.call('HDEL', base .. 'gactive', group)
  end
  -- Below its limit it is in the ring already, if it has jobs; finding out costs a walk along the ring.
  local limit = row_whole(redis.call('HGET', base .. 'glimit', group))
  if limit and running + 1 >= limit and lane_serviceable(base, group) then wake(base, 1) end
  if running <= 0 then lane_end(base, group) end
end
