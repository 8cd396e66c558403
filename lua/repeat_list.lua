#!lua flags=no-writes
-- List the repeats in the order of their next runs.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: {name, score, {field, value, ...}} for each that has its registration
-- ERRORS: none
-- WRITES: nothing
-- COST: O(n)
local base, answer = KEYS[1], {}
local all = redis.call('ZRANGE', base .. 'repeat', 0, -1, 'WITHSCORES')
for i = 1, #all, 2 do
  local fields = redis.pcall('HGETALL', base .. 'repeat:' .. all[i])
  if not fields.err and #fields > 0 then answer[#answer + 1] = {all[i], all[i + 1], fields} end
end
return answer
