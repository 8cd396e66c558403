#!lua flags=allow-oom
-- Give back claimed jobs that never started: each waits again where it came from, and nothing counts as a failure.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: per job id, token
-- RETURNS: per job "ok", "gone" or "stale"
-- ERRORS: EMQKIND
-- WRITES: active, gactive, row.state, pending | g:<group>:pending, ring, wake
-- COST: O(log n) a job
-- @include _row
-- @include _settle
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
local refusal = settle_kinds(1, 2)
if refusal then return refusal end

local base = KEYS[1]
local verdicts, released = {}, 0
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  local fields = row_read(base .. 'job:' .. id, 'attempts', 'state')
  local verdict = settle_verdict(fields[1], ARGV[i + 1])
  if not verdict then
    verdict = 'ok'
    -- A job that was reaped or settled meanwhile is where it belongs already.
    if fields[2] == 'active' then
      place_back(base, id)
      released = released + 1
    end
  end
  verdicts[#verdicts + 1] = verdict
end
wake(base, released)
return verdicts
