#!lua
-- Admit a whole flow of one queue: the parents are held, and the jobs without children wait. All or nothing.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, then per job, the root first, an entry as job_enqueue takes; last the caller's wishes (see _event)
-- RETURNS: 1 added, 0 the root is there already with the same payload, else the first id that is there already
-- ERRORS: EMQKIND
-- WRITES: as job_enqueue; announces
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
-- @include _admit
-- @include _mark
local wishes = event_begin()
local refusal = settle_kinds(3, 7)
if refusal then return refusal end

local base = KEYS[1]
local answered, late = mark_read(base, ARGV[1], ARGV[2])
-- A late try has nobody left to read its answer.
if late then return 0 end
if answered then return tonumber(answered[1]) or answered[1] end

local verdict = 1
for i = 3, #ARGV, 7 do
  local row = base .. 'job:' .. ARGV[i]
  if redis.call('EXISTS', row) == 1 then
    verdict = i == 3 and row_read(row, 'payload')[1] == ARGV[4] and 0 or ARGV[i]
    break
  end
end
if verdict == 1 then
  local call = admit_begin(wishes, true)
  for i = 3, #ARGV, 7 do admit_entry(base, i, call) end
  admit_end(base, call)
end
mark_write(base, ARGV[1], ARGV[2], tostring(verdict))
return verdict
