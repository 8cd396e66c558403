#!lua flags=allow-oom
-- Complete claimed jobs: each row goes, whoever waited for it learns the result. Only frees, so it passes when memory is full.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: per job id, token, result; last the caller's wishes (see _event)
-- RETURNS: per job "ok", "gone" or "stale"
-- ERRORS: EMQKIND
-- WRITES: active, gactive, ring, wake, row and its side keys, de:<dedup id>, metrics:completed; flow: the parent's keys or flow:outbox; announces
-- COST: O(log n) a job
-- @include _row
-- @include _clock
-- @include _log
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
local verdicts, completed = {}, 0
for i = 1, #ARGV, 3 do
  local id, row = ARGV[i], base .. 'job:' .. ARGV[i]
  local fields = row_read(row, 'attempts', 'state', 'group', 'parent', 'parent_queue', 'unique')
  local verdict = settle_verdict(fields[1], ARGV[i + 1])
  if not verdict then
    verdict = 'ok'
    completed = completed + 1
    -- First: where it fails, as on a key of another type, the job is still to be completed.
    if fields[4] then flow_completed(base, id, fields[4], fields[5], ARGV[i + 2]) end
    place_withdraw(base, id, fields[2], fields[3])
    event_end(base, call, 'completed', id, call.texts[(i + 2) / 3], ARGV[i + 1])
    -- A window stays closed until its time is over, whatever became of the job in it.
    if fields[6] and fields[6] ~= 'window' then unique_release(base, id) end
    forget_row(base, id)
  end
  verdicts[#verdicts + 1] = verdict
end
if completed > 0 then
  redis.call('HINCRBY', base .. 'metrics:completed', 'count', completed)
  wake_room(base, completed)
end
return verdicts
