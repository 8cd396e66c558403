#!lua flags=allow-oom
-- Renew the leases of all jobs a process holds: one TIME, one deadline.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: lease ms, lock form ("setex" | "field" | "key", see _lock), then per job id, token
-- RETURNS: per job "ok", "cancel" (renewed, and asked to stop), "gone" or "stale"; a job whose lease ran out and that waits again is "stale"
-- ERRORS: EMQKIND
-- WRITES: active, row.lock | row:lock
-- COST: O(log n) a job
-- @include _row
-- @include _clock
-- @include _settle
-- @include _lock
local refusal = settle_kinds(3, 2)
if refusal then return refusal end

local base, lease, form = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local deadline = clock_ms() + lease
local verdicts = {}
for i = 3, #ARGV, 2 do
  local id, row = ARGV[i], base .. 'job:' .. ARGV[i]
  local fields = row_read(row, 'attempts', 'state', 'cancel')
  local verdict = settle_verdict(fields[1], ARGV[i + 1])
  if not verdict then
    if fields[2] == 'active' then
      verdict = fields[3] and 'cancel' or 'ok'
      redis.call('ZADD', base .. 'active', deadline, id)
      lock_renew(row, ARGV[i + 1], lease, form)
    else
      verdict = 'stale'
    end
  end
  verdicts[#verdicts + 1] = verdict
end
return verdicts
