#!lua flags=allow-oom
-- Remove a job that no worker holds, from wherever it waits, with its row and everything beside it.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: id
-- RETURNS: "ok" or "gone"
-- ERRORS: EMQKIND, EMQLOCK
-- WRITES: pending | g:<group>:pending, ring | schedule | dead | active, gactive; row and its side keys; de:<dedup id>
-- COST: O(log n)
-- @include _row
-- @include _settle
-- @include _wake
-- @include _lane
-- @include _place
local refusal = settle_kinds(1, 1)
if refusal then return refusal end

local base, id = KEYS[1], ARGV[1]
local row = base .. 'job:' .. id
local fields = row_read(row, 'state', 'group', 'lock', 'dedup')
if fields[3] or redis.call('EXISTS', row .. ':lock') == 1 then
  return redis.error_reply('EMQLOCK ' .. id .. ' is held by a worker')
end
if not fields[1] then return 'gone' end
-- An active job without a lock has outlived its lease: it is taken out as one that waits.
place_withdraw(base, id, 'waiting', fields[2])
if fields[4] and redis.call('GET', base .. 'de:' .. fields[4]) == id then
  redis.call('DEL', base .. 'de:' .. fields[4])
end
redis.call('DEL', row, row .. ':logs', row .. ':dependencies', row .. ':processed', row .. ':failed', row .. ':unsuccessful')
-- It may have been an active one that outlived its lease.
wake_room(base, 1)
return 'ok'
