#!lua
-- Admit jobs: now, after a delay or at a time; flat or in a lane. An id that has a row is a duplicate, unchanged.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, then per job id, payload, mode ("now" | "in" | "at"), ms (delay for "in", unix ms for "at"), priority, group ("" = flat), its name or ""
-- RETURNS: per job 1 enqueued, 2 scheduled, 0 duplicate with the same payload, -1 duplicate with another payload
-- ERRORS: EMQKIND
-- WRITES: replies; row; pending | g:<group>:pending, ring, gnames | schedule; wake
-- COST: O(log n) a job
-- @include _row
-- @include _clock
-- @include _settle
-- @include _wake
-- @include _lane
-- @include _place
-- @include _mark
local refusal = settle_kinds(3, 7)
if refusal then return refusal end

local base = KEYS[1]
-- Sent again after its answer was lost: the rows could not tell, for a job that ran to its end meanwhile has none.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if late then return {} end
if answered then
  for i, verdict in ipairs(answered) do answered[i] = tonumber(verdict) end
  return answered
end

local verdicts, waiting = {}, 0
-- Read when the first job for later needs them: most admissions are for now.
local now, earliest, earlier

for i = 3, #ARGV, 7 do
  local id, payload, mode, group = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 5]
  local row = base .. 'job:' .. id
  if redis.call('EXISTS', row) == 1 then
    verdicts[#verdicts + 1] = row_read(row, 'payload')[1] == payload and 0 or -1
  else
    local fields = {'state', mode == 'now' and 'pending' or 'scheduled', 'attempts', '0', 'payload', payload}
    if ARGV[i + 4] ~= '0' then
      fields[#fields + 1] = 'priority'
      fields[#fields + 1] = ARGV[i + 4]
    end
    if group == '' then
      group = false
    else
      fields[#fields + 1] = 'group'
      fields[#fields + 1] = group
      if ARGV[i + 6] ~= '' then redis.call('HSET', base .. 'gnames', group, ARGV[i + 6]) end
    end
    redis.call('HSET', row, unpack(fields))
    if mode == 'now' then
      place_waiting(base, id, group, ARGV[i + 4])
      waiting = waiting + 1
      verdicts[#verdicts + 1] = 1
    else
      if not now then
        now, earlier = clock_ms(), false
        earliest = tonumber(redis.call('ZRANGE', base .. 'schedule', 0, 0, 'WITHSCORES')[2]) or math.huge
      end
      local run_at = tonumber(ARGV[i + 3]) + (mode == 'in' and now or 0)
      redis.call('ZADD', base .. 'schedule', run_at, id)
      if run_at < earliest then earliest, earlier = run_at, true end
      verdicts[#verdicts + 1] = 2
    end
  end
end
-- A parked worker sleeps until the earliest run-at that it knows; an earlier one must wake it to look again.
wake(base, waiting + (earlier and 1 or 0))
mark_write(base, ARGV[1], ARGV[2], table.concat(verdicts, ' '))
return verdicts
