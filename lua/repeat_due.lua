#!lua flags=no-writes
-- Look which repeats are due, and what the server's clock says.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: most registrations to name
-- RETURNS: {now in unix ms, {name, score, 2 whole | 1 without a template | 0 without a hash, every_ms, cron, tz, limit, fired, catch_up, priority, group, each nil when absent}, ...}
-- ERRORS: none
-- WRITES: nothing
-- COST: O(log n + due)
-- @include _row
-- @include _clock
local base, now = KEYS[1], clock_ms()
local answer = {now}
-- A queue that is paused stands still as a whole: its repeats are made up for, or left out, when it goes on.
local paused = redis.call('HGET', base .. 'meta', 'paused')
if paused and paused ~= '0' then return answer end
local due = redis.call('ZRANGEBYSCORE', base .. 'repeat', '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
for i = 1, #due, 2 do
  local key = base .. 'repeat:' .. due[i]
  -- Not the template: it may be large, and firing reads it where it is.
  local fields = row_read(key, 'every_ms', 'cron', 'tz', 'limit', 'fired', 'catch_up', 'priority', 'group')
  local whole = redis.call('EXISTS', key)
  -- Only a hash has been read.
  if #fields > 0 and whole == 1 then whole = 1 + redis.call('HEXISTS', key, 'template') end
  local entry = {due[i], due[i + 1], whole}
  for field = 1, 8 do entry[3 + field] = fields[field] or false end
  answer[#answer + 1] = entry
end
return answer
