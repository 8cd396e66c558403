#!lua flags=allow-oom
-- Destroy keys of a paused queue, a bounded number of jobs a call; the caller finds the keys, and finishes in the end.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: active jobs too ("1") or refuse ("0"), most jobs to destroy in this call, finish ("1" | "0"), then suffixes of keys, each behind the base; last the caller's wishes (see _event)
-- RETURNS: {jobs destroyed, the place of the first suffix that is not done, or 0 when all is done}
-- ERRORS: EMQSTATE
-- WRITES: every key of the queue; the pause itself goes with the last one
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
local call = event_begin()
local base, left, finish = KEYS[1], tonumber(ARGV[2]), ARGV[3] == '1'
local destroyed = 0

-- A key of another type than its name says would stop the script in its middle.
local types = {pending = 'zset', active = 'zset', schedule = 'zset', dead = 'zset', ['repeat'] = 'zset', ring = 'list',
  wake = 'list', paused = 'set', gactive = 'hash', glimit = 'hash', gauto = 'hash', gnames = 'hash', ['flow:parents'] = 'zset', gweight = 'hash', meta = 'hash'}
local function is_spoilt(key, type_)
  local found = redis.call('TYPE', key).ok
  return found ~= 'none' and found ~= type_
end

if is_spoilt(base .. 'meta', 'hash') then
  return redis.error_reply('EMQSTATE its key meta is no hash: delete it, pause the queue, then obliterate it')
end
local paused = redis.call('HGET', base .. 'meta', 'paused')
if not paused or paused == '0' then
  local kept = redis.call('EXISTS', base .. 'meta', base .. 'pending', base .. 'active', base .. 'schedule', base .. 'dead')
  -- The finish again after its answer was lost: there is nothing left.
  if finish and kept == 0 then return {0, 0} end
  return redis.error_reply('EMQSTATE the queue is not paused: pause it first, and wait for its active jobs')
end
if ARGV[1] ~= '1' and redis.call('EXISTS', base .. 'active') == 1 then
  return redis.error_reply('EMQSTATE jobs are active: wait until none is, or destroy them too with force')
end
for name, type_ in pairs(types) do
  if is_spoilt(base .. name, type_) then redis.call('DEL', base .. name) end
end

-- Drop a job with all that is kept of it, and the parents in this queue that would wait for it for ever.
local function destroy(id)
  for _ = 1, 9 do
    local row = base .. 'job:' .. id
    local fields = row_read(row, 'group', 'parent', 'parent_queue')
    if redis.call('EXISTS', row) == 1 then destroyed = destroyed + 1 end
    if fields[1] and is_spoilt(lane_key(base, fields[1]), 'zset') then redis.call('DEL', lane_key(base, fields[1])) end
    place_withdraw(base, id, 'waiting', fields[1])
    unique_release(base, id)
    forget_row(base, id)
    redis.call('UNLINK', row .. ':result')
    left = left - 1
    if not fields[2] or fields[3] and fields[3] ~= flow_queue(base) then return end
    id = fields[2]
    if redis.call('EXISTS', base .. 'job:' .. id) == 0 then return end
  end
end

-- Destroy the jobs of a set; false when this call's share was used up before its end.
local function destroy_all(key)
  if is_spoilt(key, 'zset') then redis.call('DEL', key) end
  while left > 0 do
    local ids = redis.call('ZRANGE', key, 0, math.min(left, 100) - 1)
    if #ids == 0 then return true end
    for _, id in ipairs(ids) do
      destroy(id)
      redis.call('ZREM', key, id)
    end
  end
  return redis.call('EXISTS', key) == 0
end

for i = 4, #ARGV do
  local suffix = ARGV[i]
  if left <= 0 then return {destroyed, i - 3} end
  local id = string.match(suffix, '^job:(JOB' .. string.rep('%w', 11) .. ')')
  local group = string.match(suffix, '^g:(.+):pending$')
  local name = string.match(suffix, '^repeat:(.+)$')
  if id then
    destroy(id)
  elseif group or suffix == 'pending' or suffix == 'active' or suffix == 'schedule' or suffix == 'dead' then
    if not destroy_all(base .. suffix) then return {destroyed, i - 3} end
    if group then redis.call('LREM', base .. 'ring', 0, group) end
  elseif name then
    redis.call('ZREM', base .. 'repeat', name)
  end
  redis.call('UNLINK', base .. suffix)
end

if finish then
  -- What was admitted meanwhile goes in the same step in which the pause ends, or goes on waiting for the next call.
  local keys = {'pending', 'active', 'schedule', 'dead', 'flow:parents'}
  for _, group in ipairs(groups_of(base)) do keys[#keys + 1] = 'g:' .. group .. ':pending' end
  for _, suffix in ipairs(keys) do
    if not destroy_all(base .. suffix) then return {destroyed, 1} end
  end
  for _, name in ipairs(redis.call('ZRANGE', base .. 'repeat', 0, -1)) do redis.call('UNLINK', base .. 'repeat:' .. name) end
  for _, suffix in ipairs({'repeat', 'replies', 'flow:outbox', 'limiter', 'metrics:completed', 'metrics:failed', 'ring',
    'paused', 'gactive', 'glimit', 'gauto', 'gweight', 'gnames', 'flow:parents', 'wake', 'meta'}) do
    redis.call('UNLINK', base .. suffix)
  end
end
return {destroyed, 0}
