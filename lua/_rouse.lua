-- Wake the workers that parked because of a pause or a ceiling, for what waits by now.
local function rouse(base)
  local n = redis.call('ZCARD', base .. 'pending')
  -- There are never more than 64 tokens, so as many lanes are enough to know.
  for _, group in ipairs(redis.call('LRANGE', base .. 'ring', 0, 63)) do
    n = n + redis.call('ZCARD', lane_key(base, group))
  end
  -- Who parked meanwhile was told neither when the next scheduled job or repeat is due, nor of chores.
  n = n + redis.call('EXISTS', base .. 'schedule', base .. 'repeat', base .. 'flow:outbox')
  wake(base, n)
end
