-- The ring after a lane's setting or its jobs were changed by hand: it holds the lane exactly when it can be served now.
local function mend_ring(base, group)
  local depth = redis.call('ZCARD', lane_key(base, group))
  local headroom = lane_headroom(base, group)
  if depth == 0 or headroom <= 0 or redis.call('SISMEMBER', base .. 'paused', group) == 1 then
    redis.call('LREM', base .. 'ring', 0, group)
    return
  end
  lane_serviceable(base, group)
  -- One token a job, so that all parked workers start at once and not one by one.
  wake(base, math.min(depth, headroom))
end
