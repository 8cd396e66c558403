#!lua flags=allow-oom
-- Set or remove a lane's weight: how many of its jobs are served in each of its turns.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: group, its name or "", jobs a turn ("" = one)
-- RETURNS: "ok"
-- ERRORS: none
-- WRITES: gweight, gnames
-- COST: O(1)
-- @include _row
-- @include _wake
-- @include _lane
local base, group = KEYS[1], ARGV[1]
if ARGV[3] == '' then
  redis.call('HDEL', base .. 'gweight', group)
else
  redis.call('HSET', base .. 'gweight', group, ARGV[3])
  if ARGV[2] ~= '' then redis.pcall('HSET', base .. 'gnames', group, ARGV[2]) end
end
lane_end(base, group)
return 'ok'
