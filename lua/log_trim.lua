#!lua flags=allow-oom
-- Drop the oldest records of a retained log.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: the log's name, most records to keep ("" = any number), ms for which they are kept ("" = for ever), exactly ("1") or at whole nodes of the stream and by ten thousand records a bound ("0")
-- RETURNS: how many were dropped
-- ERRORS: EMQSTATE
-- WRITES: stream:<name>
-- COST: O(dropped)
-- @include _clock
-- @include _retention
local age = tonumber(ARGV[3])
local removed = retention_trim(KEYS[1] .. 'stream:' .. ARGV[1], ARGV[4] == '1', tonumber(ARGV[2]), age and clock_ms() - age)
if type(removed) == 'number' then return removed end
if string.find(removed.err, '^WRONGTYPE') then return redis.error_reply('EMQSTATE the key of the log ' .. ARGV[1] .. ' is no stream') end
return removed
