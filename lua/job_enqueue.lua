#!lua
-- Admit jobs: now, after a delay or at a time; flat or in a lane. An id that has a row is a duplicate, unchanged.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, then per job id, payload, mode ("now" | "in" | "at"), ms (delay for "in", unix ms for "at"), priority, group ("" = flat), "" or extras as JSON (see _admit); last the caller's wishes (see _event)
-- RETURNS: per job 1 enqueued, 2 scheduled, 0 duplicate with the same payload, -1 duplicate with another payload, -2 a flow child that has ended already, or the id of the job that holds its unique key
-- ERRORS: EMQKIND
-- WRITES: replies; row; pending | g:<group>:pending, ring, gnames, glimit | schedule; de:<dedup id>; row:dependencies; wake; announces
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
-- @include _admit
-- @include _mark
local wishes = event_begin()
local refusal = settle_kinds(3, 7)
if refusal then return refusal end

local base = KEYS[1]
-- Sent again after its answer was lost: the rows could not tell, for a job that ran to its end meanwhile has none.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if late then return {} end
if answered then
  for i, verdict in ipairs(answered) do answered[i] = tonumber(verdict) or verdict end
  return answered
end

local verdicts, call = {}, admit_begin(wishes)
for i = 3, #ARGV, 7 do verdicts[#verdicts + 1] = admit_entry(base, i, call) end
admit_end(base, call)
mark_write(base, ARGV[1], ARGV[2], table.concat(verdicts, ' '))
return verdicts
