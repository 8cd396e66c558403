-- Delete a job's row with everything beside it. Its result stays: it has an end of its own.
local function forget_row(base, id)
  local row = base .. 'job:' .. id
  redis.call('DEL', row, row .. ':lock', row .. ':logs', row .. ':dependencies', row .. ':processed', row .. ':failed',
    row .. ':unsuccessful')
end

-- Drop a job that will not run any more and is in no set: whoever waits for it is told.
local function forget_job(base, id, reason, call)
  local fields = row_read(base .. 'job:' .. id, 'state', 'dedup', 'parent', 'parent_queue', 'parent_policy', 'group')
  if fields[2] then unique_release(base, id) end
  if fields[1] == 'awaiting_children' then redis.call('ZREM', base .. 'flow:parents', id) end
  forget_row(base, id)
  -- A lane that it was to wait in may end without ever having had a job.
  if fields[6] then lane_end(base, fields[6]) end
  -- Also of a dead one: its parent, brought back, may be waiting for it.
  if fields[3] then flow_died(base, id, fields[3], fields[4], fields[5], reason, call) end
end
