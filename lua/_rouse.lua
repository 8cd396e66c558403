-- Wake the workers that parked because of a pause or a ceiling, for what waits by now.
local function rouse(base)
  local n = redis.call('ZCARD', base .. 'pending')
  -- There are never more than 64 tokens, so as many lanes are enough to know.
  for _, group in ipairs(redis.call('LRANGE', base .. 'ring', 0, 63)) do
    n = n + redis.call('ZCARD', lane_key(base, group))
  end
  -- Who parked meanwhile was not told when the next scheduled job is due.
  if redis.call('EXISTS', base .. 'schedule') == 1 then n = n + 1 end
  wake(base, n)
end
