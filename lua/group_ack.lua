#!lua flags=allow-oom
-- Finish entries: the group is done with them, whoever holds them now.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, then entry ids
-- RETURNS: how many were pending
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(1) an entry
local base = KEYS[1]
local key = base .. 'stream:' .. ARGV[1]
local finished = 0
for i = 3, #ARGV do finished = finished + redis.call('XACK', key, ARGV[2], ARGV[i]) end
return finished
