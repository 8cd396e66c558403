#!lua flags=allow-oom
-- Reap with a count: a job whose worker died with it `max_stalled` times is buried instead of killing the next one.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: most jobs to sweep in this call, max stalled (a job at this count is buried); last the caller's wishes (see _event)
-- RETURNS: {recovered ids, buried ids}
-- ERRORS: none
-- WRITES: as job_reap, and row.stalled, flow:parents; dead, row.last_error, row.died, metrics:failed, de:<dedup id>, flow keys; announces
-- COST: O(log n) a job; O(active) when the row of one was deleted by hand
local base = KEYS[1]
-- Most of the time nothing is held, and no parent waits.
if redis.call('EXISTS', base .. 'active', base .. 'flow:parents') == 0 then return {{}, {}} end
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
-- @include _forget
-- @include _dead
local call = event_begin()
local max_stalled = tonumber(ARGV[2])
local recovered, buried, now, recount = {}, {}, event_now(call), false
for _, id in ipairs(place_expired(base, now, tonumber(ARGV[1]))) do
  local row = base .. 'job:' .. id
  local fields = row_read(row, 'state', 'group', 'stalled', 'cancel')
  if not fields[1] then
    redis.call('ZREM', base .. 'active', id)
    recount = true
  else
    local stalled = row_count(fields[3]) + 1
    redis.call('HSET', row, 'stalled', stalled)
    if stalled >= max_stalled then
      place_withdraw(base, id, fields[1], fields[2])
      if fields[4] then
        event_row(base, call, 'cancelled', id)
        forget_job(base, id, 'cancelled', call)
        wake_room(base, 1)
      else
        place_unlock(row)
        event_row(base, call, 'failed', id, ',"error":"stalled"')
        dead_bury(base, id, 'stalled', call)
        buried[#buried + 1] = id
      end
    else
      event_row(base, call, 'stalled', id)
      place_back(base, id)
      recovered[#recovered + 1] = id
    end
  end
end
if recount then place_recount(base) end
-- What another runtime has set going is no parent that waits any more.
for _, id in ipairs(redis.call('ZRANDMEMBER', base .. 'flow:parents', 20)) do
  if row_read(base .. 'job:' .. id, 'state')[1] ~= 'awaiting_children' then redis.call('ZREM', base .. 'flow:parents', id) end
end
-- A buried job makes room too, under the queue's concurrency ceiling.
wake(base, #recovered + #buried)
return {recovered, buried}
