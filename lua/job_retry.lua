#!lua flags=allow-oom
-- Record failures of claimed jobs: each is scheduled again after its delay, or buried when its retries are used up.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: per job id, token, delay ms, max retries (-1 = no limit, 0 = bury now), error, keep ("1") or replace ("0") the payload, payload; last the caller's wishes (see _event)
-- RETURNS: per job "scheduled", "dead", "cancelled" (it was asked to stop while it ran, and is gone) or "stale" (also when the row is gone)
-- ERRORS: EMQKIND
-- WRITES: active, gactive, ring, wake, row (state, failures, last_error, settled, payload); schedule | dead, metrics:failed, de:<dedup id>, flow keys | all that is kept of the job; announces
-- COST: O(log n) a job
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _settle
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
-- @include _forget
-- @include _dead
local call = event_begin()
local refusal = settle_kinds(1, 7)
if refusal then return refusal end

local base = KEYS[1]
local now = event_now(call)
local verdicts, freed = {}, 0
for i = 1, #ARGV, 7 do
  local id, row, text = ARGV[i], base .. 'job:' .. ARGV[i], call.texts[(i + 6) / 7]
  local fields = row_read(row, 'attempts', 'state', 'group', 'settled', 'failures', 'cancel', 'unique')
  -- Where a completion finds its job gone, and does no harm, a failure is refused: the wire's answer to both is stale.
  local verdict = settle_verdict(fields[1], ARGV[i + 1]) and 'stale'
  if not verdict and fields[4] == ARGV[i + 1] then
    -- The same call again after a lost reply: the first one was done, so nothing is counted twice.
    verdict = fields[2] == 'dead' and 'dead' or 'scheduled'
  elseif not verdict then
    place_withdraw(base, id, fields[2], fields[3])
    place_unlock(row)
    freed = freed + 1
    if fields[6] then
      verdict = 'cancelled'
      event_end(base, call, 'cancelled', id, text, ARGV[i + 1])
      forget_job(base, id, 'cancelled', call)
    end
  end
  if not verdict then
    if ARGV[i + 5] == '0' then redis.call('HSET', row, 'payload', ARGV[i + 6]) end
    local max_retries, failures = tonumber(ARGV[i + 3]), row_count(fields[5]) + 1
    redis.call('HSET', row, 'settled', ARGV[i + 1], 'failures', failures)
    -- Its worker lived to tell: what counts towards max_stalled are deaths in a row.
    redis.call('HDEL', row, 'stalled')
    if max_retries < 0 or failures <= max_retries then
      verdict = 'scheduled'
      local run_at = now + tonumber(ARGV[i + 2])
      local first = redis.call('ZRANGE', base .. 'schedule', 0, 0, 'WITHSCORES')
      redis.call('HSET', row, 'state', 'scheduled', 'last_error', ARGV[i + 4])
      redis.call('ZADD', base .. 'schedule', run_at, id)
      if fields[7] == 'start' then unique_retake(base, id) end
      if not first[2] or run_at < tonumber(first[2]) then wake(base, 1) end
      event_end(base, call, 'retried', id, (text or '') .. ',"delay_ms":"' .. ARGV[i + 2] .. '"', ARGV[i + 1])
    else
      verdict = 'dead'
      event_end(base, call, 'failed', id, text, ARGV[i + 1])
      dead_bury(base, id, ARGV[i + 4], call)
    end
  end
  verdicts[#verdicts + 1] = verdict
end
wake_room(base, freed)
return verdicts
