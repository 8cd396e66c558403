#!lua flags=no-writes
-- Read what a flow parent knows of its children.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: parent id
-- RETURNS: {} when it has no row, else {children outstanding, {child, result, ...}, {child, error, ...} that failed it, {child, error, ...} that were ignored}
-- ERRORS: EMQKIND
-- WRITES: nothing
-- COST: O(children)
-- @include _row
-- @include _settle
local refusal = settle_kinds(1, 1)
if refusal then return refusal end

local row = KEYS[1] .. 'job:' .. ARGV[1]
if redis.call('EXISTS', row) == 0 then return {} end
local outstanding = redis.pcall('GET', row .. ':dependencies')
return {
  row_count(type(outstanding) == 'string' and outstanding),
  redis.call('HGETALL', row .. ':processed'),
  redis.call('HGETALL', row .. ':failed'),
  redis.call('HGETALL', row .. ':unsuccessful'),
}
