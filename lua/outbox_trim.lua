#!lua flags=allow-oom
-- Take delivered entries off the outbox, by their value: another worker may have taken some of them off meanwhile.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: entries
-- RETURNS: how many were still there
-- ERRORS: none
-- WRITES: flow:outbox
-- COST: O(entries in front) an entry
local base, taken = KEYS[1], 0
for _, entry in ipairs(ARGV) do
  taken = taken + redis.call('LREM', base .. 'flow:outbox', 1, entry)
end
return taken
