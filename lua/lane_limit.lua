#!lua flags=allow-oom
-- Set or remove a lane's ceiling on its active jobs.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: group, its name or "", active jobs at most ("" = no ceiling, whatever jobs bring; "auto" = what jobs bring)
-- RETURNS: "ok"
-- ERRORS: none
-- WRITES: glimit, gauto, gnames, ring, wake
-- COST: O(lanes in the ring)
-- @include _row
-- @include _wake
-- @include _lane
-- @include _mend
local base, group = KEYS[1], ARGV[1]
if ARGV[3] == 'auto' then
  redis.call('HDEL', base .. 'glimit', group)
  redis.call('HDEL', base .. 'gauto', group)
elseif ARGV[3] == '' then
  redis.call('HDEL', base .. 'glimit', group)
  redis.call('HSET', base .. 'gauto', group, '-')
else
  redis.call('HSET', base .. 'glimit', group, ARGV[3])
  redis.call('HSET', base .. 'gauto', group, '-')
end
if ARGV[2] ~= '' and ARGV[3] ~= 'auto' then redis.pcall('HSET', base .. 'gnames', group, ARGV[2]) end
mend_ring(base, group)
lane_end(base, group)
return 'ok'
