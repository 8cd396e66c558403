#!lua flags=allow-oom
-- Deliver to a consumer one entry that others have left unfinished for too long; the next call goes on behind it.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, consumer, ms for which nothing was heard of an entry, where to begin ("0-0", or what the last call answered)
-- RETURNS: {} without the group; else {where to go on, "0-0" at the end, {{entry id, fields, deliveries}} or {}, ids that are in the log no more}
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(groups), and a look at 100 pending entries at most
-- @include _consumers
local base, group, consumer, cursor = KEYS[1], ARGV[2], ARGV[3], ARGV[5]
local key = base .. 'stream:' .. ARGV[1]
if not consumers_group(key, group) then return {} end
local entries, gone = {}, {}
for _ = 1, 10 do
  -- One: each that it takes counts as delivered. It looks at ten at most.
  local found = redis.call('XAUTOCLAIM', key, group, consumer, ARGV[4], cursor, 'COUNT', 1)
  cursor = found[1]
  for _, id in ipairs(found[3]) do gone[#gone + 1] = id end
  local entry = found[2][1]
  if entry then entries = {{entry[1], entry[2], consumers_deliveries(key, group, consumer, entry[1])}} end
  if entry or cursor == '0-0' then break end
end
return {cursor, entries, gone}
