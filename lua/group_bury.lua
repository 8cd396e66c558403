#!lua
-- Move an entry that failed for good to the dead log `<log>.dead`, and finish it: both or neither.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, consumer, entry id, error, unix ms and low 22 bits of the minted id of the dead record, how many records the dead log keeps when it has no retention, how often it was delivered to be handled
-- RETURNS: the EVT id of the dead record; "lost" when the entry is this consumer's no more, "gone" when it is in the log no more
-- ERRORS: EMQSTATE
-- WRITES: stream:<log>, stream:<log>.dead
-- COST: O(groups + fields), and what the trim drops
-- @include _clock
-- @include _consumers
-- @include _log
-- @include _retention
local base, group, consumer, id = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local key = base .. 'stream:' .. ARGV[1]
if not (consumers_group(key, group) and consumers_deliveries(key, group, consumer, id)) then return 'lost' end
local entry = redis.call('XRANGE', key, id, id)[1]
if not entry then
  redis.call('XACK', key, group, id)
  return 'gone'
end
local fields = {}
local function keep(name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
-- Its `id` becomes `dead.id`, for the dead record has one of its own. Lua passes on some 8,000 values at most.
local kept = math.min(#entry[2], 6000)
for at = 1, kept, 2 do
  keep(entry[2][at] == 'id' and 'dead.id' or entry[2][at], entry[2][at + 1])
end
if kept < #entry[2] then keep('dead.truncated', (#entry[2] - kept) / 2) end
keep('dead.error', ARGV[5])
keep('dead.entry', id)
keep('dead.group', group)
keep('dead.deliveries', ARGV[9])
local added, evt = log_add(key .. '.dead', tonumber(ARGV[6]), tonumber(ARGV[7]), fields)
if not added then return redis.error_reply('EMQSTATE the dead log takes no record: ' .. evt) end
redis.call('XACK', key, group, id)
local rule, maxlen, age = redis.call('HGET', base .. 'retention', ARGV[1] .. '.dead'), tonumber(ARGV[8]), nil
if rule then maxlen, age = retention_read(rule) end
retention_trim(key .. '.dead', false, maxlen, age and clock_ms() - age)
return evt
