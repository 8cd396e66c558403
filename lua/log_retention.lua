#!lua flags=allow-oom
-- Set or remove within which bounds a log is kept from now on; in somebody's name, only where nobody else has set them.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: the log's name, the bounds as _retention reads them ("" = none), in whose name ("" = by hand)
-- RETURNS: "ok", or "kept" when others had set them
-- ERRORS: none
-- WRITES: retention
-- COST: O(1)
local base, owner = KEYS[1], ARGV[3]
local bounds = redis.call('HGET', base .. 'retention', ARGV[1])
if owner ~= '' and bounds and string.match(bounds, 'by=(%w+)') ~= owner then return 'kept' end
if ARGV[2] == '' then
  redis.call('HDEL', base .. 'retention', ARGV[1])
else
  redis.call('HSET', base .. 'retention', ARGV[1], ARGV[2] .. (owner ~= '' and ' by=' .. owner or ''))
end
return 'ok'
