#!lua flags=allow-oom
-- Trim every log of the queue that has a retention, at whole nodes of its stream, ten thousand records a bound at most.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: how many records were dropped
-- ERRORS: none
-- WRITES: stream:<name>
-- COST: O(logs that have one + dropped)
-- @include _clock
-- @include _retention
local base, removed = KEYS[1], 0
local rules = redis.call('HGETALL', base .. 'retention')
if #rules == 0 then return 0 end
local now = clock_ms()
for at = 1, #rules, 2 do
  -- A hand may have written any name; one that is none leads to no key.
  if string.find(rules[at], '^[%w._-]+$') then
    local maxlen, age = retention_read(rules[at + 1])
    local dropped = retention_trim(base .. 'stream:' .. rules[at], false, maxlen, age and now - age)
    -- What stands there and is no log must not keep the others from being trimmed.
    if type(dropped) == 'number' then removed = removed + dropped end
  end
end
return removed
