#!lua flags=allow-oom
-- Deliver again an entry that a consumer has been given before.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, consumer, entry id, whether this counts as a delivery ("1" | "0")
-- RETURNS: {} without the group; else {{{entry id, fields, deliveries}} or {} when this consumer holds it no more, {} or the id when it is in the log no more}
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(groups + log n)
-- @include _consumers
local base, group, consumer, id = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local key = base .. 'stream:' .. ARGV[1]
if not consumers_group(key, group) then return {} end
local deliveries = consumers_deliveries(key, group, consumer, id)
if not deliveries then return {{}, {}} end
local entry = redis.call('XRANGE', key, id, id)[1]
if not entry then
  redis.call('XACK', key, group, id)
  return {{}, {id}}
end
deliveries = deliveries + tonumber(ARGV[5])
redis.call('XCLAIM', key, group, consumer, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
return {{{id, entry[2], deliveries}}, {}}
