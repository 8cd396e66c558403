#!lua flags=allow-oom
-- Claim up to n waiting jobs, flat and ring in turn, under the queue's pause, rate and concurrency ceilings.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: n, lease ms, lock form ("field" | "key"), caller, nonce
-- RETURNS: {ms until this queue is worth another look or -1, {id, payload, token, group or "", failures, stalled}, ...}
-- ERRORS: none
-- WRITES: replies; schedule (due jobs are promoted first), pending, g:*:pending, ring, gactive, row, active, limiter, wake, meta.turn
-- COST: O(n log m)
-- @include _row
-- @include _clock
-- @include _wake
-- @include _lane
-- @include _place
-- @include _promote
-- @include _lock
-- @include _mark
local base, n, lease, as_field = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == 'field'
local now = clock_ms()
local claimed, leases, taken = {}, {}, {}

local function take(id, token, fields, group)
  claimed[#claimed + 1] = {id, fields[1] or '', token, group or '', row_count(fields[2]), row_count(fields[3])}
  leases[#leases + 1] = now + lease
  leases[#leases + 1] = id
  taken[#taken + 1] = id .. ' ' .. token
end

local function answer(look_again)
  if #claimed > 0 then
    for i = 1, #leases, 2000 do
      redis.call('ZADD', base .. 'active', unpack(leases, i, math.min(i + 1999, #leases)))
    end
    mark_write(base, ARGV[4], ARGV[5], table.concat(taken, ' '))
  end
  table.insert(claimed, 1, look_again)
  return claimed
end

-- Sent again after its answer was lost: what it had taken is handed out now, and given back where there is no room.
local lost, late = mark_read(base, ARGV[4], ARGV[5])
-- A try that comes after the next one must not take or give back what that one has handed out.
if late then return {-1} end
if lost then
  local given_back = 0
  for i = 1, #lost, 2 do
    local row = base .. 'job:' .. lost[i]
    local fields = row_read(row, 'payload', 'failures', 'stalled', 'state', 'attempts', 'group')
    if fields[4] == 'active' and fields[5] == lost[i + 1] then
      if #claimed < n then
        lock_renew(row, fields[5], lease, as_field)
        take(lost[i], row_count(fields[5]), fields, fields[6])
      else
        place_back(base, lost[i])
        given_back = given_back + 1
      end
    end
  end
  wake(base, given_back)
  if #claimed > 0 then return answer(-1) end
end

local meta = redis.call('HMGET', base .. 'meta', 'paused', 'max', 'concurrency', 'duration', 'turn')
if meta[1] and meta[1] ~= '0' then
  -- Tokens of a paused queue would only make its workers spin; whoever resumes it pushes new ones.
  redis.call('DEL', base .. 'wake')
  return {-1}
end

local function scheduled_first()
  return tonumber(redis.call('ZRANGE', base .. 'schedule', 0, 0, 'WITHSCORES')[2])
end

local next_due, promoted = scheduled_first(), 0
if next_due and next_due <= now then
  promoted = promote_due(base, now, math.max(n, 100))
  next_due = scheduled_first()
end
local duration = tonumber(meta[4]) or 1000
local look_again = -1

local function look_in(ms)
  if ms >= 0 and (look_again < 0 or ms < look_again) then look_again = ms end
end

-- Ceilings: `max` jobs a limiter window, `concurrency` jobs active at once.
local room = n
local max, concurrency = tonumber(meta[2]), tonumber(meta[3])
if max then
  local left = max - row_count(redis.call('GET', base .. 'limiter'))
  if left < room then room = left end
  if left <= 0 then
    local window = redis.call('PTTL', base .. 'limiter')
    look_in(window < 0 and duration or window)
  end
end
if concurrency then room = math.min(room, concurrency - redis.call('ZCARD', base .. 'active')) end

local function claim(id, group)
  local row = base .. 'job:' .. id
  local fields = row_read(row, 'payload', 'failures', 'stalled', 'state', 'attempts')
  -- An id without a row was deleted by hand; it is dropped here instead of running as an empty job.
  if not fields[4] then return false end
  local token = row_count(fields[5]) + 1
  lock_claim(row, token, lease, as_field)
  take(id, token, fields, group)
  return true
end

local function claim_flat(count)
  local popped = redis.call('ZPOPMIN', base .. 'pending', count)
  for i = 1, #popped, 2 do claim(popped[i]) end
  return #popped / 2
end

-- Serve the next lane: its weight says how many heads, its limit and the room how many at most.
local function claim_ring(count)
  local group = redis.call('LMOVE', base .. 'ring', base .. 'ring', 'LEFT', 'RIGHT')
  if not group then return false end
  local weight = tonumber(redis.call('HGET', base .. 'gweight', group)) or 1
  local share = math.min(count, math.max(weight, 1), lane_headroom(base, group))
  if share > 0 then
    local popped = redis.call('ZPOPMIN', lane_key(base, group), share)
    local taken = 0
    for i = 1, #popped, 2 do
      if claim(popped[i], group) then taken = taken + 1 end
    end
    if taken > 0 then
      redis.call('HSET', base .. 'gactive', group, row_count(redis.call('HGET', base .. 'gactive', group)) + taken)
    end
  end
  -- The rotation left this lane at the tail, so that is where it is taken off.
  if redis.call('EXISTS', lane_key(base, group)) == 0 or lane_headroom(base, group) <= 0 then
    redis.call('RPOP', base .. 'ring')
  end
  return true
end

local none_waiting = false
if room > 0 then
  local ring = redis.call('LLEN', base .. 'ring')
  if ring == 0 then
    none_waiting = claim_flat(room) < room or redis.call('EXISTS', base .. 'pending') == 0
  else
    -- `turn` outlives the call, or one-job claims would always begin with the same side.
    local flat_turn = meta[5] ~= 'ring'
    local flat, lanes = redis.call('EXISTS', base .. 'pending') == 1, true
    local both = flat
    -- A rotation may meet a lane that turns out empty, so the bound counts the ring's length too.
    for _ = 1, 2 * room + ring do
      if #claimed >= room or not (flat or lanes) then break end
      if flat and (flat_turn or not lanes) then
        flat = claim_flat(1) > 0
      elseif lanes then
        lanes = claim_ring(room - #claimed)
      end
      flat_turn = not flat_turn
    end
    if both then redis.call('HSET', base .. 'meta', 'turn', flat_turn and 'flat' or 'ring') end
    none_waiting = redis.call('EXISTS', base .. 'pending') == 0 and redis.call('EXISTS', base .. 'ring') == 0
  end
end

if max and #claimed > 0 then
  redis.call('SET', base .. 'limiter', row_count(redis.call('GET', base .. 'limiter')) + #claimed, 'KEEPTTL')
  if redis.call('PTTL', base .. 'limiter') < 0 then
    redis.call('PEXPIRE', base .. 'limiter', duration)
  end
end

if next_due then look_in(math.max(next_due - now, 0)) end
if none_waiting or room <= 0 then
  redis.call('DEL', base .. 'wake')
  -- The claimer is about to be busy: another parked worker must know of the next run-at in its place. One that is
  -- further off than this it learns in time by itself, on its beat.
  if #claimed > 0 and next_due and next_due - now < 10000 then wake(base, 1) end
elseif promoted > #claimed then
  wake(base, promoted - #claimed)
elseif redis.call('EXISTS', base .. 'wake') == 0 then
  -- Jobs wait and no token is left: more workers are parked than tokens fit, or one died with a token in its hand.
  wake(base, 1)
end
return answer(look_again)
