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
-- @include _wishes
-- @include _settle
-- @include _wake
-- @include _finish
local call = event_begin()
local refusal = settle_kinds(1, 3)
if refusal then return refusal end

local base = KEYS[1]
local rows, verdicts, ended, done = {}, {}, {}, {}
local plain = not event_told(base, call, 'completed')
for i = 1, #ARGV, 3 do
  local id = ARGV[i]
  local fields = row_read(base .. 'job:' .. id, 'attempts', 'state', 'group', 'parent', 'parent_queue', 'unique')
  local verdict = settle_verdict(fields[1], ARGV[i + 1])
  if not verdict and ended[id] then
    -- Named twice: its row is gone by now, as far as this call is concerned.
    verdict = 'gone'
  elseif not verdict then
    ended[id] = true
    done[#done + 1] = id
    plain = plain and fields[2] == 'active' and not (fields[3] or fields[4] or fields[6])
  end
  rows[#rows + 1] = fields
  verdicts[#verdicts + 1] = verdict or 'ok'
end

local function counted()
  if #done > 0 then
    redis.call('HINCRBY', base .. 'metrics:completed', 'count', #done)
    wake_room(base, #done)
  end
  return verdicts
end

-- The rest, and the time that it takes to define it, is for those that are in a lane or a flow, are unique or listened to.
if plain then
  finish_rows(base, done)
  return counted()
end
-- @include _log
-- @include _event
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
-- @include _forget
local together = {}
for at, verdict in ipairs(verdicts) do
  local i, fields = at * 3 - 2, rows[at]
  local id = ARGV[i]
  if verdict == 'ok' then
    local alone = fields[2] ~= 'active' or fields[3] or fields[4] or fields[6]
    if alone then
      -- What fails, as on a key of another type, must not keep those before it from their end.
      finish_rows(base, together)
      together = {}
      -- First: where it fails, the job is still to be completed.
      if fields[4] then flow_completed(base, id, fields[4], fields[5], ARGV[i + 2]) end
      place_withdraw(base, id, fields[2], fields[3])
    else
      together[#together + 1] = id
    end
    event_end(base, call, 'completed', id, call.texts[at], ARGV[i + 1])
    if alone then
      -- A window stays closed until its time is over, whatever became of the job in it.
      if fields[6] and fields[6] ~= 'window' then unique_release(base, id) end
      forget_row(base, id)
    end
  end
end
finish_rows(base, together)
return counted()
