#!lua flags=allow-oom
-- Set or remove a queue's concurrency ceiling: so many jobs active at once.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: active jobs at most ("" = no ceiling)
-- RETURNS: "ok"
-- ERRORS: none
-- WRITES: meta.concurrency, wake
-- COST: O(1)
-- @include _row
-- @include _wake
-- @include _lane
-- @include _rouse
local base = KEYS[1]
if ARGV[1] == '' then
  redis.call('HDEL', base .. 'meta', 'concurrency')
else
  redis.call('HSET', base .. 'meta', 'concurrency', ARGV[1])
end
rouse(base)
return 'ok'
