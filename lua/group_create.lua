#!lua
-- Make a consumer group, and its log when that is not there yet; one that is there stays as it is.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, where to begin ("head" = all that is kept, "new" = behind the last entry)
-- RETURNS: 1 when it was made, 0 when it was there
-- ERRORS: EMQSTATE
-- WRITES: stream:<log>
-- COST: O(groups), and a copy of the oldest and the newest record
-- @include _consumers
local base, group = KEYS[1], ARGV[2]
local key = base .. 'stream:' .. ARGV[1]
local type_ = redis.call('TYPE', key).ok
if type_ ~= 'none' and type_ ~= 'stream' then
  return redis.error_reply('EMQSTATE the key ' .. key .. ' holds no log, but a ' .. type_ .. ': delete it, or use another name')
end
if consumers_group(key, group) then return 0 end
local added, length = consumers_counts(key)
-- What was trimmed before the group was there is none of its business, and counts as read.
local start, read = '0', added - length
if ARGV[3] == 'new' then start, read = '$', added end
redis.call('XGROUP', 'CREATE', key, group, start, 'MKSTREAM', 'ENTRIESREAD', read)
return 1
