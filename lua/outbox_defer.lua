#!lua flags=allow-oom
-- Put entries that cannot be delivered now behind all others, by their value: what another worker has delivered is gone.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: entries
-- RETURNS: how many were still there
-- ERRORS: none
-- WRITES: flow:outbox
-- COST: O(entries in front) an entry
local base, moved = KEYS[1], 0
for _, entry in ipairs(ARGV) do
  if redis.call('LREM', base .. 'flow:outbox', 1, entry) == 1 then
    redis.call('RPUSH', base .. 'flow:outbox', entry)
    moved = moved + 1
  end
end
return moved
