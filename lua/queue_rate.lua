#!lua flags=allow-oom
-- Set or remove a queue's rate ceiling: so many claims a window.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: claims a window ("" = no ceiling), the window's length in ms
-- RETURNS: "ok"
-- ERRORS: none
-- WRITES: meta.max, meta.duration (1000 is left out), limiter, wake
-- COST: O(1)
-- @include _row
-- @include _wake
-- @include _lane
-- @include _rouse
local base, window = KEYS[1], tonumber(ARGV[2])
if ARGV[1] == '' then
  redis.call('HDEL', base .. 'meta', 'max', 'duration')
  redis.call('DEL', base .. 'limiter')
else
  redis.call('HSET', base .. 'meta', 'max', ARGV[1])
  if window == 1000 then
    redis.call('HDEL', base .. 'meta', 'duration')
  else
    redis.call('HSET', base .. 'meta', 'duration', ARGV[2])
  end
  -- The window that is open began under the old length: it must not outlast the new one.
  if redis.call('PTTL', base .. 'limiter') > window then redis.call('PEXPIRE', base .. 'limiter', ARGV[2]) end
end
rouse(base)
return 'ok'
