#!lua flags=allow-oom
-- Drop jobs with their rows, a bounded number a call; the caller repeats until nothing is left.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: most jobs to drop in this call, then the sets: "pending", "lanes", "schedule", "dead", "active"
-- RETURNS: how many were dropped; fewer than asked for means that none is left
-- ERRORS: none
-- WRITES: the named sets, rows and their side keys, ring, gactive, wake
-- COST: O(log n) a job
-- @include _row
-- @include _groups
-- @include _wake
-- @include _lane
local base, left = KEYS[1], tonumber(ARGV[1])
local dropped = 0

local function drop(key)
  -- Nothing is left of this call's share; a range up to -1 would be everything.
  if left <= 0 then return end
  local ids = redis.call('ZRANGE', key, 0, left - 1)
  for _, id in ipairs(ids) do
    local row = base .. 'job:' .. id
    local group = redis.call('HGET', row, 'group')
    if redis.call('ZREM', base .. 'active', id) == 1 and group then lane_release(base, group) end
    redis.call('ZREM', key, id)
    redis.call('DEL', row, row .. ':lock', row .. ':logs', row .. ':dependencies', row .. ':processed', row .. ':failed',
      row .. ':unsuccessful')
  end
  left = left - #ids
  dropped = dropped + #ids
end

for i = 2, #ARGV do
  if ARGV[i] == 'lanes' then
    for _, group in ipairs(groups_of(base)) do
      drop(lane_key(base, group))
      if redis.call('EXISTS', lane_key(base, group)) == 0 then redis.call('LREM', base .. 'ring', 0, group) end
    end
  else
    drop(base .. ARGV[i])
  end
end
-- Some of them may have been active.
wake_room(base, dropped)
return dropped
