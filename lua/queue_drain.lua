#!lua flags=allow-oom
-- Drop jobs with their rows, a bounded number a call; the caller repeats until nothing is left.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, most jobs to drop in this call, then the sets: "pending", "lanes", "schedule", "dead", "active", "flow:parents"; last the caller's wishes (see _event)
-- RETURNS: how many were dropped; fewer than asked for means that none is left
-- ERRORS: none
-- WRITES: replies; the named sets, rows and their side keys, ring, gactive, wake, de:<dedup id>; flow: the parents' keys or flow:outbox; announces
-- COST: O(log n) a job
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _groups
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
-- @include _forget
-- @include _mark
local call = event_begin()
local base, most = KEYS[1], tonumber(ARGV[3])
-- Sent again after its answer was lost: the caller must not lose count of what is gone.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if answered or late then return tonumber(answered and answered[1]) or 0 end
local left, dropped = most, 0

local function drop(key)
  -- Nothing is left of this call's share; a range up to -1 would be everything.
  if left <= 0 then return end
  local ids = redis.call('ZRANGE', key, 0, left - 1)
  for _, id in ipairs(ids) do
    local fields = row_read(base .. 'job:' .. id, 'group', 'state')
    redis.call('ZREM', key, id)
    -- A parent that another runtime has set going is still listed, and waits for its children no more.
    if key ~= base .. 'flow:parents' or fields[2] == 'awaiting_children' then
      if redis.call('ZREM', base .. 'active', id) == 1 or key == base .. 'active' then
        if fields[1] then lane_release(base, fields[1]) end
      end
      forget_job(base, id, 'drained', call)
      dropped = dropped + 1
    end
  end
  left = left - #ids
end

for i = 4, #ARGV do
  if ARGV[i] == 'lanes' then
    -- Those in the ring from its head, where they are taken off without a walk along it.
    while left > 0 do
      local group = redis.call('LINDEX', base .. 'ring', 0)
      if not group then break end
      drop(lane_key(base, group))
      if redis.call('EXISTS', lane_key(base, group)) == 0 and redis.call('LINDEX', base .. 'ring', 0) == group then
        redis.call('LPOP', base .. 'ring')
        lane_end(base, group)
      end
    end
    for _, group in ipairs(left > 0 and groups_of(base) or {}) do
      drop(lane_key(base, group))
      if redis.call('EXISTS', lane_key(base, group)) == 0 then
        redis.call('LREM', base .. 'ring', 0, group)
        lane_end(base, group)
      end
    end
  else
    drop(base .. ARGV[i])
  end
end
event_drained(base, call, dropped, most, '')
mark_write(base, ARGV[1], ARGV[2], tostring(dropped))
-- Some of them may have been active.
wake_room(base, dropped)
return dropped
