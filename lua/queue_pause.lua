#!lua flags=allow-oom
-- Pause a queue: nothing is claimed until it is resumed; what runs is finished, and admissions go on.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: 1, or 0 when it was paused already
-- ERRORS: none
-- WRITES: meta.paused
-- COST: O(1)
local base = KEYS[1]
local paused = redis.call('HGET', base .. 'meta', 'paused')
if paused and paused ~= '0' then return 0 end
redis.call('HSET', base .. 'meta', 'paused', '1')
return 1
