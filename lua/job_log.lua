#!lua
-- Add a line to a job's log, of which the last ones are kept.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id, line, most lines to keep (0 = all)
-- RETURNS: how many lines there are, or -1 when the job is gone
-- ERRORS: EMQKIND
-- WRITES: row:logs
-- COST: O(lines dropped)
-- @include _settle
local refusal = settle_kinds(1, 3)
if refusal then return refusal end

local row, keep = KEYS[1] .. 'job:' .. ARGV[1], tonumber(ARGV[3])
if redis.call('EXISTS', row) == 0 then return -1 end
local lines = redis.call('RPUSH', row .. ':logs', ARGV[2])
if keep > 0 and lines > keep then
  redis.call('LTRIM', row .. ':logs', -keep, -1)
  lines = keep
end
return lines
