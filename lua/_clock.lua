-- The server's clock in unix ms. Called once a script: Redis 7.0 does not freeze TIME inside one.
local function clock_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
