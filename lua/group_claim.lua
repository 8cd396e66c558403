#!lua flags=allow-oom
-- Deliver to a consumer what others have left unfinished for too long.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, consumer, ms for which nothing was heard of an entry, where to begin ("0-0", or what the last call answered), most entries
-- RETURNS: {} without the group; else {where to go on, {{entry id, fields, deliveries}, ...}, ids that are in the log no more}
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(groups + entries)
-- @include _consumers
local base, group, consumer = KEYS[1], ARGV[2], ARGV[3]
local key = base .. 'stream:' .. ARGV[1]
if not consumers_group(key, group) then return {} end
local found = redis.call('XAUTOCLAIM', key, group, consumer, ARGV[4], ARGV[5], 'COUNT', ARGV[6])
local entries = {}
for _, entry in ipairs(found[2]) do
  entries[#entries + 1] = {entry[1], entry[2], consumers_deliveries(key, group, consumer, entry[1])}
end
return {found[1], entries, found[3]}
