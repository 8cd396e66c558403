-- A repeat's registration: what is stored under a name, compared with what a caller registers. Its definition stands in
-- ARGV from `first` on: every ms, template, then field and value of each other that is not at its default.

-- Answers the stored fields, nil when nothing that can fire is there; whether it runs at the same times as the one that
-- is given; and whether it is all the same.
local function registration_compare(base, name, first)
  local names = {'every_ms', 'template', 'cron', 'tz', 'limit', 'catch_up', 'priority', 'group', 'group_name',
    'group_limit', 'dedup', 'unique', 'ttl'}
  local given = {every_ms = ARGV[first], template = ARGV[first + 1]}
  for i = first + 2, #ARGV, 2 do given[ARGV[i]] = ARGV[i + 1] end
  local values = row_read(base .. 'repeat:' .. name, 'fired', unpack(names))
  local stored = {fired = values[1] or nil}
  for i, field in ipairs(names) do stored[field] = values[i + 1] or nil end
  -- Half a registration, or a spoilt one, cannot fire: it is not there, so that registering it again repairs it.
  if not stored.template or row_count(stored.every_ms) <= 0 then return nil, false, false end
  if not redis.call('ZSCORE', base .. 'repeat', name) then return nil, false, false end
  -- Of a cron registration every_ms moves with each fire.
  local same_times = stored.cron == given.cron and stored.tz == given.tz
    and (given.cron ~= nil or tonumber(stored.every_ms) == tonumber(given.every_ms))
  local same = same_times
  for i = 2, #names do same = same and stored[names[i]] == given[names[i]] end
  return stored, same_times, same
end
