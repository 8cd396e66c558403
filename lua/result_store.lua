#!lua
-- Keep a result for a while, in place of any before it, and wake all who wait for it.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id, the encoded result, how many ms to keep it
-- RETURNS: "ok"
-- ERRORS: EMQKIND
-- WRITES: row:result
-- COST: O(1)
-- @include _settle
local refusal = settle_kinds(1, 3)
if refusal then return refusal end

local key = KEYS[1] .. 'job:' .. ARGV[1] .. ':result'
-- Whatever is there goes first: a list of one is what every waiter rotates, and another type could not be one.
redis.call('DEL', key)
redis.call('RPUSH', key, ARGV[2])
redis.call('PEXPIRE', key, math.max(tonumber(ARGV[3]), 1))
return 'ok'
