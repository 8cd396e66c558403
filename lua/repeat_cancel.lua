#!lua flags=allow-oom
-- Cancel a repeat: nothing of it stays but the jobs it has fired.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, name
-- RETURNS: 1 cancelled, 0 there was none
-- ERRORS: none
-- WRITES: replies; repeat, repeat:<name>
-- COST: O(log n)
-- @include _mark
local base = KEYS[1]
local key = base .. 'repeat:' .. ARGV[3]
-- Sent again after its answer was lost: what it finds gone it took away itself, or somebody has registered since.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if late then return 0 end
if answered then return tonumber(answered[1]) end
local gone = redis.call('ZREM', base .. 'repeat', ARGV[3]) + redis.call('DEL', key)
mark_write(base, ARGV[1], ARGV[2], gone > 0 and '1' or '0')
return gone > 0 and 1 or 0
