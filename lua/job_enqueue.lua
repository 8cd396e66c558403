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
-- @include _wishes
-- @include _settle
-- @include _wake
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

local function answer(verdicts)
  mark_write(base, ARGV[1], ARGV[2], table.concat(verdicts, ' '))
  return verdicts
end

-- Jobs that only wait, flat and for now, of which nobody is told: as most do. The rest, and the time that it takes to
-- define it, is for the others.
local plain, seen, rows, places = not event_told(base, wishes, 'enqueued'), {}, {}, {}
for i = 3, plain and #ARGV or 0, 7 do
  local id = ARGV[i]
  if seen[id] or ARGV[i + 2] ~= 'now' or ARGV[i + 5] ~= '' or ARGV[i + 6] ~= '' then
    plain = false
    break
  end
  seen[id] = true
  rows[#rows + 1] = base .. 'job:' .. id
  places[#places + 1] = row_count(ARGV[i + 4])
  places[#places + 1] = id
end
for i = 1, #rows, 1000 do
  local key = rows[i]
  plain = plain and redis.call('EXISTS', key, unpack(rows, i + 1, math.min(i + 999, #rows))) == 0
end
if plain then
  local verdicts = {}
  for i = 1, #places, 2000 do
    redis.call('ZADD', base .. 'pending', unpack(places, i, math.min(i + 1999, #places)))
  end
  for at, row in ipairs(rows) do
    local i = at * 7 - 4
    if ARGV[i + 4] == '0' then
      redis.call('HSET', row, 'state', 'pending', 'attempts', '0', 'payload', ARGV[i + 1])
    else
      redis.call('HSET', row, 'state', 'pending', 'attempts', '0', 'payload', ARGV[i + 1], 'priority', ARGV[i + 4])
    end
    verdicts[at] = 1
  end
  wake(base, #rows)
  return answer(verdicts)
end
-- @include _log
-- @include _event
-- @include _lane
-- @include _unique
-- @include _place
-- @include _admit
local verdicts, call = {}, admit_begin(wishes)
for i = 3, #ARGV, 7 do verdicts[#verdicts + 1] = admit_entry(base, i, call) end
admit_end(base, call)
return answer(verdicts)
