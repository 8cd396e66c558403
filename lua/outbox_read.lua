#!lua flags=no-writes
-- Read what this queue's children owe to parents in other queues, oldest first.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: how many entries to pass over, most entries, bytes after which no further entry is read
-- RETURNS: entries, NUL-joined: parent queue, parent id, child id, result; or "", "fail", parent queue, parent id, child id, policy, error
-- ERRORS: none
-- WRITES: nothing
-- COST: O(entries)
local base, first, most, room = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local entries = {}
while #entries < most and room > 0 do
  -- A few at a time: results may be large.
  local last = first + math.min(10, most - #entries) - 1
  local some = redis.call('LRANGE', base .. 'flow:outbox', first, last)
  if #some == 0 then break end
  first = last + 1
  for _, entry in ipairs(some) do
    if room <= 0 then break end
    entries[#entries + 1] = entry
    room = room - #entry
  end
end
return entries
