-- Lanes: one group's jobs wait in their own zset, and the ring lists the lanes that can be served now.

local function lane_key(base, group)
  return base .. 'g:' .. group .. ':pending'
end

local function lane_headroom(base, group)
  local limit = tonumber(redis.call('HGET', base .. 'glimit', group))
  if not limit then return math.huge end
  return limit - row_count(redis.call('HGET', base .. 'gactive', group))
end

-- Make a lane serviceable: the one rule for when a lane joins the ring. Answers whether it joined.
local function lane_serviceable(base, group)
  if redis.call('SISMEMBER', base .. 'paused', group) == 1 then return false end
  if redis.call('EXISTS', lane_key(base, group)) == 0 then return false end
  if lane_headroom(base, group) <= 0 then return false end
  if redis.call('LPOS', base .. 'ring', group) then return false end
  redis.call('RPUSH', base .. 'ring', group)
  return true
end

-- One job of the group stopped running: count it down, drop the count at 0, and look whether the lane can be served.
local function lane_release(base, group)
  local running = row_count(redis.call('HGET', base .. 'gactive', group)) - 1
  if running > 0 then
    redis.call('HSET', base .. 'gactive', group, running)
  else
    redis.call('HDEL', base .. 'gactive', group)
  end
  if lane_serviceable(base, group) then wake(base, 1) end
end
