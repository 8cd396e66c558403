#!lua flags=allow-oom
-- Set or remove a lane's ceiling on its active jobs.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: group, its name or "", active jobs at most ("" = no ceiling)
-- RETURNS: "ok"
-- ERRORS: none
-- WRITES: glimit, gnames, ring, wake
-- COST: O(lanes in the ring)
-- @include _row
-- @include _wake
-- @include _lane
-- @include _mend
local base, group = KEYS[1], ARGV[1]
if ARGV[3] == '' then
  redis.call('HDEL', base .. 'glimit', group)
else
  redis.call('HSET', base .. 'glimit', group, ARGV[3])
  if ARGV[2] ~= '' then redis.call('HSET', base .. 'gnames', group, ARGV[2]) end
end
mend_ring(base, group)
return 'ok'
