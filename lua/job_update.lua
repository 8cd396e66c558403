#!lua
-- Replace a job's payload.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id, payload
-- RETURNS: "ok" or "gone"
-- ERRORS: EMQKIND
-- WRITES: row.payload
-- COST: O(1)
-- @include _settle
local refusal = settle_kinds(1, 2)
if refusal then return refusal end

local row = KEYS[1] .. 'job:' .. ARGV[1]
if redis.call('EXISTS', row) == 0 then return 'gone' end
redis.call('HSET', row, 'payload', ARGV[2])
return 'ok'
