-- Bury a job that is in no set any more, and tell whoever waits for it.
local function dead_bury(base, id, reason, call)
  local fields = row_read(base .. 'job:' .. id, 'parent', 'parent_queue', 'parent_policy', 'unique')
  if fields[4] then unique_release(base, id) end
  flow_bury(base, id, reason, call)
  if fields[1] then flow_died(base, id, fields[1], fields[2], fields[3], reason, call) end
end
