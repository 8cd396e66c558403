#!lua
-- Note what one process has counted of a table; on request, forget those that have said nothing for long.
-- KEYS[1] base   prefix  the table base ecc:{table}:
-- ARGV: who reports, its report, ms that a report is kept, 1 to look for old ones
-- RETURNS: how many reports there are
-- ERRORS: none
-- WRITES: stats
-- COST: O(1), or O(reports) when it looks for old ones
-- @include _clock
local key, now, kept = KEYS[1] .. 'stats', clock_ms(), tonumber(ARGV[3])
redis.call('HSET', key, ARGV[1], string.format('%.0f ', now) .. ARGV[2])
if ARGV[4] == '1' then
  local found = redis.call('HGETALL', key)
  for i = 1, #found, 2 do
    local at = tonumber(string.match(found[i + 1], '^(%d+) '))
    if not at or at < now - kept then redis.call('HDEL', key, found[i]) end
  end
end
redis.call('PEXPIRE', key, kept)
return redis.call('HLEN', key)
