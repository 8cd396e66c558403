#!lua
-- Register a repeat under a name; one that is there stays as it is, unless it may be replaced and is another.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, name, replace ("1" | "0"), mode of the first run ("in" | "at"), ms (delay for "in", unix ms for "at"), every ms, template, then field and value of each of cron, tz, limit, catch_up, priority, group, group_name, group_limit, dedup, unique, ttl that is not at its default
-- RETURNS: 1 registered or changed, 0 it was there
-- ERRORS: none
-- WRITES: replies; repeat, repeat:<name>, wake
-- COST: O(log n)
-- @include _row
-- @include _clock
-- @include _wake
-- @include _registration
-- @include _mark
local base, name = KEYS[1], ARGV[3]
-- Sent again after its answer was lost: the registration it finds is its own.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if late then return 0 end
if answered then return tonumber(answered[1]) end

local stored, same_times, same = registration_compare(base, name, 7)
if stored and (same or ARGV[4] ~= '1') then
  mark_write(base, ARGV[1], ARGV[2], '0')
  return 0
end

local fields = {'every_ms', same_times and stored.every_ms or ARGV[7], 'template', ARGV[8]}
for i = 9, #ARGV do fields[#fields + 1] = ARGV[i] end
if stored and stored.fired then
  fields[#fields + 1] = 'fired'
  fields[#fields + 1] = stored.fired
end
local key = base .. 'repeat:' .. name
redis.call('DEL', key)
redis.call('HSET', key, unpack(fields))
if not same_times then
  local run_at = tonumber(ARGV[6]) + (ARGV[5] == 'in' and clock_ms() or 0)
  local first = redis.call('ZRANGE', base .. 'repeat', 0, 0, 'WITHSCORES')
  redis.call('ZADD', base .. 'repeat', run_at, name)
  -- A parked worker sleeps until the earliest run that it knows; an earlier one must wake it to look again.
  if not first[2] or run_at < tonumber(first[2]) then wake(base, 1) end
end
mark_write(base, ARGV[1], ARGV[2], '1')
return 1
