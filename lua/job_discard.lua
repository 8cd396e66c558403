#!lua flags=allow-oom
-- End claimed jobs that will not be done, as cancelled ones: each row goes, and its parent learns that it failed.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: per job id, token, reason; last the caller's wishes (see _event)
-- RETURNS: per job "ok", "gone" or "stale"
-- ERRORS: EMQKIND
-- WRITES: active, gactive, ring, wake, row and its side keys, de:<dedup id>; flow: the parent's keys or flow:outbox; announces
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
local call = event_begin()
local refusal = settle_kinds(1, 3)
if refusal then return refusal end

local base = KEYS[1]
local verdicts, freed = {}, 0
for i = 1, #ARGV, 3 do
  local id = ARGV[i]
  local fields = row_read(base .. 'job:' .. id, 'attempts', 'state', 'group')
  local verdict = settle_verdict(fields[1], ARGV[i + 1])
  if not verdict then
    verdict = 'ok'
    freed = freed + 1
    place_withdraw(base, id, fields[2], fields[3])
    event_end(base, call, 'cancelled', id, call.texts[(i + 2) / 3], ARGV[i + 1])
    forget_job(base, id, ARGV[i + 2], call)
  end
  verdicts[#verdicts + 1] = verdict
end
wake_room(base, freed)
return verdicts
