#!lua flags=allow-oom
-- Reap with a count: a job whose worker died with it `max_stalled` times is buried instead of killing the next one.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: most jobs to sweep in this call, max stalled (a job at this count is buried)
-- RETURNS: {recovered ids, buried ids}
-- ERRORS: none
-- WRITES: as job_reap, and row.stalled; dead, row.last_error, metrics:failed, flow keys
-- COST: O(log n) a job
-- @include _row
-- @include _clock
-- @include _wake
-- @include _lane
-- @include _place
-- @include _flow
-- @include _dead
local base, max_stalled = KEYS[1], tonumber(ARGV[2])
local recovered, buried = {}, {}
for _, id in ipairs(place_expired(base, clock_ms(), tonumber(ARGV[1]))) do
  local row = base .. 'job:' .. id
  local fields = row_read(row, 'state', 'group', 'stalled')
  if not fields[1] then
    redis.call('ZREM', base .. 'active', id)
  else
    local stalled = row_count(fields[3]) + 1
    redis.call('HSET', row, 'stalled', stalled)
    if stalled >= max_stalled then
      place_withdraw(base, id, fields[1], fields[2])
      place_unlock(row)
      dead_bury(base, id, 'stalled')
      buried[#buried + 1] = id
    else
      place_back(base, id)
      recovered[#recovered + 1] = id
    end
  end
end
-- A buried job makes room too, under the queue's concurrency ceiling.
wake(base, #recovered + #buried)
return {recovered, buried}
