-- Which set or lane holds a job; the sets are the truth, the row's own state only names what is in no set.
local function state_of(base, id)
  local fields = row_read(base .. 'job:' .. id, 'state', 'group')
  if redis.call('ZSCORE', base .. 'active', id) then return 'active' end
  if redis.call('ZSCORE', base .. 'pending', id) then return 'pending' end
  if fields[2] and redis.call('ZSCORE', base .. 'g:' .. fields[2] .. ':pending', id) then return 'pending' end
  if redis.call('ZSCORE', base .. 'schedule', id) then return 'scheduled' end
  if redis.call('ZSCORE', base .. 'dead', id) then return 'dead' end
  if not fields[1] then return 'absent' end
  if fields[1] == 'awaiting_children' then return 'awaiting_children' end
  return 'unknown'
end
