#!lua flags=allow-oom
-- Claim up to n waiting jobs, flat and ring in turn, under the queue's pause, rate and concurrency ceilings.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: n, lease ms, lock form ("setex" | "field" | "key", see _lock), caller, nonce; last the caller's wishes (see _event)
-- RETURNS: {ms until this queue is worth another look or -1, chores (1 repeats are due + 2 the outbox holds something), {id, payload, token, group or "", failures, stalled, 1 for a flow child}, ...}
-- ERRORS: none
-- WRITES: replies; schedule (due jobs are promoted first), pending, g:*:pending, ring, gactive, row, active, limiter, wake, meta.turn, meta.share; de:<dedup id>; cancelled jobs go, as in job_cancel; announces
-- COST: O(n log m)
-- @include _order
-- @include _row
-- @include _clock
-- @include _wishes
-- @include _wake
-- @include _lock
-- @include _mark
local call = event_begin()
local base, n, lease, form = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local now = event_now(call)
local claimed, leases, taken = {}, {}, {}
local held = 0
local dropped = 0

local function take(id, token, fields, group)
  claimed[#claimed + 1] = {id, fields[1] or '', token, group or '', fields[2] and row_count(fields[2]) or 0,
    fields[3] and row_count(fields[3]) or 0, fields[6] and 1 or 0}
  leases[#leases + 1] = now + lease
  leases[#leases + 1] = id
  taken[#taken + 1] = id .. ' ' .. token
end

-- What was taken is active from here on. Right behind each pop: a key of another type that stops the script later must
-- not cost a job its place.
local function hold()
  for i = held + 1, #leases, 2000 do
    redis.call('ZADD', base .. 'active', unpack(leases, i, math.min(i + 1999, #leases)))
  end
  held = #leases
end

local function answer(look_again, chores)
  if #claimed > 0 then
    hold()
    mark_write(base, ARGV[4], ARGV[5], table.concat(taken, ' '))
  end
  table.insert(claimed, 1, chores)
  table.insert(claimed, 1, look_again)
  return claimed
end

local meta = redis.call('HMGET', base .. 'meta', 'paused', 'max', 'concurrency', 'duration', 'turn', 'share')
local paused = meta[1] and meta[1] ~= '0'
-- Sent again after its answer was lost: what it had taken is handed out now, and given back where there is no room, or
-- where the queue was paused meanwhile.
local lost, late = mark_read(base, ARGV[4], ARGV[5])
-- A try that comes after the next one must not take or give back what that one has handed out.
if late then return {-1, 0} end

local function scheduled_first()
  return tonumber(redis.call('ZRANGE', base .. 'schedule', 0, 0, 'WITHSCORES')[2])
end

-- Most queues have none of these most of the time, and one look tells.
local owed_chore, next_due, next_repeat, ring = 0, nil, nil, 0
if redis.call('EXISTS', base .. 'flow:outbox', base .. 'schedule', base .. 'repeat', base .. 'ring') > 0 then
  -- A worker that is told of chores does them, so they need no timer of their own.
  owed_chore = redis.call('EXISTS', base .. 'flow:outbox') * 2
  next_due = scheduled_first()
  next_repeat = tonumber(redis.pcall('ZRANGE', base .. 'repeat', 0, 0, 'WITHSCORES')[2])
  ring = redis.call('EXISTS', base .. 'ring')
end
local look_again = -1

local function look_in(ms)
  if ms >= 0 and (look_again < 0 or ms < look_again) then look_again = ms end
end

-- The last of a claim: the tokens that the workers are owed, and the answer. `full` when it got all there was room for.
local function leave(none_waiting, full, promoted)
  if next_due then look_in(math.max(next_due - now, 0)) end
  local chores = dropped > 0 and redis.call('EXISTS', base .. 'flow:outbox') * 2 or owed_chore
  if next_repeat then
    if next_repeat <= now then chores = chores + 1 else look_in(next_repeat - now) end
  end
  if none_waiting or full then
    redis.call('DEL', base .. 'wake')
    -- The claimer is about to be busy: another parked worker must know of the next run-at in its place. One that is
    -- further off than this it learns in time by itself, on its beat.
    local next_look = math.min(next_due or math.huge, next_repeat or math.huge)
    if #claimed > 0 and next_look - now < 10000 then wake(base, 1) end
  elseif promoted > #claimed then
    wake(base, promoted - #claimed)
  elseif redis.call('EXISTS', base .. 'wake') == 0 then
    -- Jobs wait and no token is left: more workers are parked than tokens fit, or one died with a token in its hand.
    wake(base, 1)
  end
  return answer(look_again, chores)
end

-- Whether this is an id of the wire: what is none would be refused when it is settled, and its neighbours with it.
local function is_id(text, kind)
  if #text ~= 14 or not string.find(text, '^%u%u%u%w+$') or (kind and string.sub(text, 1, 3) ~= kind) then
    return false
  end
  -- Below a first digit of A all are, and so are the ids of the next sixty years.
  return string.byte(text, 4) < 65 or id_below(string.sub(text, 4), 'AzL8n0Y58m8')
end

-- Claim a job, when nothing is to be said or done of it but that.
local function claim_plain(id)
  if not is_id(id, 'JOB') then return false end
  local row = base .. 'job:' .. id
  local fields = row_read(row, 'payload', 'failures', 'stalled', 'state', 'attempts', 'parent', 'unique', 'cancel')
  if not fields[4] or fields[8] or fields[7] == 'start' then return false end
  local token = row_count(fields[5]) + 1
  lock_claim(row, token, lease, form)
  take(id, token, fields)
  return true
end

-- Most claims are of flat jobs, without ceilings, and nobody listens. The rest, and the time that it takes to define it,
-- is for the others: from the first job on of which there is more to do, so that all are handed out in their order.
local popped, at = {}, 1
if not lost and not paused and not (meta[2] or meta[3] or meta[6]) and ring == 0 and not (next_due and next_due <= now)
  and (redis.call('EXISTS', base .. 'pending') == 0 or not event_told(base, call, 'started')) then
  popped = redis.call('ZPOPMIN', base .. 'pending', n)
  while popped[at] and claim_plain(popped[at]) do at = at + 2 end
  hold()
  if at > #popped then return leave(#claimed < n or redis.call('EXISTS', base .. 'pending') == 0, false, 0) end
end
-- @include _log
-- @include _event
-- @include _lane
-- @include _unique
-- @include _place
-- @include _promote
-- @include _flow
-- @include _forget
if lost then
  local given_back = 0
  for i = 1, #lost, 2 do
    local row = base .. 'job:' .. lost[i]
    local fields = row_read(row, 'payload', 'failures', 'stalled', 'state', 'attempts', 'parent', 'group')
    if fields[4] == 'active' and fields[5] == lost[i + 1] then
      if #claimed < n and not paused then
        lock_renew(row, fields[5], lease, form)
        take(lost[i], row_count(fields[5]), fields, fields[7])
      else
        place_back(base, lost[i])
        given_back = given_back + 1
      end
    end
  end
  wake(base, given_back)
  if #claimed > 0 then return answer(-1, 0) end
end

if paused then
  -- Tokens of a paused queue would only make its workers spin; whoever resumes it pushes new ones.
  redis.call('DEL', base .. 'wake')
  return {-1, owed_chore}
end

local promoted = 0
if next_due and next_due <= now then
  promoted = promote_due(base, now, math.max(n, 100))
  next_due = scheduled_first()
end
local duration = math.max(row_whole(meta[4]) or 1000, 1)

-- Ceilings: `max` jobs a limiter window, `concurrency` jobs active at once.
local room, spent = n, false
local max, concurrency = row_whole(meta[2]), row_whole(meta[3])
if max then
  spent = redis.pcall('GET', base .. 'limiter')
  if type(spent) ~= 'string' then spent = false end
  local left = max - row_count(spent)
  if left < room then room = left end
  if left <= 0 then
    local window = redis.call('PTTL', base .. 'limiter')
    if window < 0 then
      -- Left without an end, by a hand: the queue would stand still for ever.
      window = duration
      redis.call('PEXPIRE', base .. 'limiter', duration)
    end
    look_in(window)
  end
end
if concurrency then room = math.min(room, concurrency - redis.call('ZCARD', base .. 'active')) end

local function claim(id, group)
  if not is_id(id, 'JOB') then return false end
  local row = base .. 'job:' .. id
  local fields = row_read(row, 'payload', 'failures', 'stalled', 'state', 'attempts', 'parent', 'unique', 'cancel')
  -- An id without a row was deleted by hand; it is dropped here instead of running as an empty job.
  if not fields[4] then return false end
  if fields[8] then
    -- It was asked to stop while it ran, and came back when its worker died or gave it up.
    event_job(base, call, 'cancelled', id, fields[1], fields[5])
    forget_job(base, id, 'cancelled', call)
    dropped = dropped + 1
    return false
  end
  if fields[7] == 'start' then unique_release(base, id) end
  local token = row_count(fields[5]) + 1
  lock_claim(row, token, lease, form)
  take(id, token, fields, group)
  event_job(base, call, 'started', id, fields[1], token)
  return true
end

local function claim_flat(count)
  local seen, most = 0, count + 100
  -- What is dropped makes room for the next, or a claim might answer that nothing waits; but not without end.
  repeat
    local before = #claimed
    local popped = redis.call('ZPOPMIN', base .. 'pending', count)
    for i = 1, #popped, 2 do claim(popped[i]) end
    hold()
    seen, count = seen + #popped / 2, count - (#claimed - before)
  until #claimed - before == #popped / 2 or seen >= most
  return seen
end

-- Serve the next lane: its weight says how many heads, its limit and the room how many at most. What the room of a call
-- cuts off is served first by the next one, or weights would mean nothing to workers that claim job by job.
local owed, owed_to = string.match(meta[6] or '', '^(%d+) (.+)$')
owed = tonumber(owed) or 0

local function claim_ring(count)
  local group
  local due = owed > 0 and redis.call('LPOS', base .. 'ring', owed_to) and owed
  if due then
    group = owed_to
    -- The weight may have been lowered meanwhile.
    due = math.min(due, math.max(row_count(redis.call('HGET', base .. 'gweight', group) or 1), 1))
  else
    group = redis.call('LMOVE', base .. 'ring', base .. 'ring', 'LEFT', 'RIGHT')
    if not group then return false end
    if not is_id(group) then
      redis.call('LREM', base .. 'ring', 0, group)
      return true
    end
    due = math.max(row_count(redis.call('HGET', base .. 'gweight', group) or 1), 1)
  end
  local share = math.min(count, due, lane_headroom(base, group))
  local taken = 0
  owed, owed_to = due - math.max(share, 0), group
  if share > 0 then
    local popped = redis.call('ZPOPMIN', lane_key(base, group), share)
    for i = 1, #popped, 2 do
      if claim(popped[i], group) then taken = taken + 1 end
    end
    hold()
    if taken > 0 then
      redis.call('HSET', base .. 'gactive', group, row_count(redis.call('HGET', base .. 'gactive', group)) + taken)
    end
  end
  if redis.call('EXISTS', lane_key(base, group)) == 0 or lane_headroom(base, group) <= 0 then
    -- From the tail, where the rotation has left it.
    redis.call('LREM', base .. 'ring', -1, group)
    owed = 0
    if taken == 0 then lane_end(base, group) end
  end
  return true
end

for i = at, #popped, 2 do claim(popped[i]) end
hold()

local none_waiting = false
if room > 0 then
  ring = redis.call('LLEN', base .. 'ring')
  if ring == 0 then
    if meta[6] then redis.call('HDEL', base .. 'meta', 'share') end
    local wanted = room - #claimed
    none_waiting = claim_flat(wanted) < wanted or redis.call('EXISTS', base .. 'pending') == 0
    if dropped > 0 then
      -- A parent that waited for one of them may wait for a worker now.
      none_waiting = redis.call('EXISTS', base .. 'pending') == 0 and redis.call('EXISTS', base .. 'ring') == 0
    end
  else
    -- `turn` outlives the call, or one-job claims would always begin with the same side.
    local flat_turn = meta[5] ~= 'ring'
    local flat, lanes = redis.call('EXISTS', base .. 'pending') == 1, true
    local both = flat
    -- A rotation may meet a lane that turns out empty, or a job that is dropped, so the bound counts the ring's length
    -- and some more.
    for _ = 1, 2 * room + ring + 100 do
      if #claimed >= room or not (flat or lanes) then break end
      if flat and (flat_turn or not lanes) then
        flat = claim_flat(1) > 0
      elseif lanes then
        -- One job a turn while flat ones wait, so that a weight is a share among lanes and not against the flat queue.
        lanes = claim_ring(flat and 1 or room - #claimed)
      end
      flat_turn = not flat_turn
    end
    if both then redis.call('HSET', base .. 'meta', 'turn', flat_turn and 'flat' or 'ring') end
    if owed > 0 then
      redis.call('HSET', base .. 'meta', 'share', owed .. ' ' .. owed_to)
    elseif meta[6] then
      redis.call('HDEL', base .. 'meta', 'share')
    end
    none_waiting = redis.call('EXISTS', base .. 'pending') == 0 and redis.call('EXISTS', base .. 'ring') == 0
  end
end

if max and #claimed > 0 then
  redis.call('SET', base .. 'limiter', row_count(spent) + #claimed, 'KEEPTTL')
  if redis.call('PTTL', base .. 'limiter') < 0 then
    redis.call('PEXPIRE', base .. 'limiter', duration)
  end
end

return leave(none_waiting, room <= 0, promoted)
