#!lua flags=no-writes
-- Look at a result.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id
-- RETURNS: the encoded result, or nil when there is none
-- ERRORS: EMQKIND, EMQSTATE
-- WRITES: nothing
-- COST: O(1)
-- @include _settle
local refusal = settle_kinds(1, 1)
if refusal then return refusal end

local key = KEYS[1] .. 'job:' .. ARGV[1] .. ':result'
local result = redis.pcall('LINDEX', key, 0)
if type(result) == 'table' then
  return redis.error_reply('EMQSTATE ' .. key .. ' is no list: it was not written as a result')
end
return result
