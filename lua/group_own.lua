#!lua flags=allow-oom
-- Deliver again what a consumer has been given before; what it holds no more is passed over.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, consumer, then per entry its id and whether this counts as a delivery ("1" | "0")
-- RETURNS: {} without the group; else {{{entry id, fields, deliveries}, ...}, ids that are in the log no more}
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(groups), and O(log n) an entry
-- @include _consumers
local base, group, consumer = KEYS[1], ARGV[2], ARGV[3]
local key = base .. 'stream:' .. ARGV[1]
if not consumers_group(key, group) then return {} end
local entries, gone = {}, {}
for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local deliveries = consumers_deliveries(key, group, consumer, id)
  if deliveries then
    deliveries = deliveries + tonumber(ARGV[i + 1])
    local entry = redis.call('XRANGE', key, id, id)[1]
    if entry then
      redis.call('XCLAIM', key, group, consumer, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
      entries[#entries + 1] = {id, entry[2], deliveries}
    else
      redis.call('XACK', key, group, id)
      gone[#gone + 1] = id
    end
  end
end
return {entries, gone}
