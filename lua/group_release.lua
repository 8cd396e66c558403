#!lua flags=allow-oom
-- Give back entries that a consumer was given and has not started: others may take them at once, and nothing is counted.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, consumer, ms of idleness to leave them with, then entry ids
-- RETURNS: how many were given back
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(groups), and O(log n) an entry
-- @include _consumers
local base, group, consumer = KEYS[1], ARGV[2], ARGV[3]
local key = base .. 'stream:' .. ARGV[1]
if not consumers_group(key, group) then return 0 end
local released = 0
for i = 5, #ARGV do
  local id = ARGV[i]
  local deliveries = consumers_deliveries(key, group, consumer, id)
  if deliveries then
    redis.call('XCLAIM', key, group, consumer, 0, id, 'IDLE', ARGV[4], 'RETRYCOUNT', math.max(deliveries - 1, 0), 'JUSTID')
    released = released + 1
  end
end
return released
