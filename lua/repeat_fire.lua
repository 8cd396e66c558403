#!lua
-- Fire due repeats: each that still stands where it was seen admits one job and moves on to its next run.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, then per repeat a fresh job id, name, the score it was seen at, its next score, its new every_ms ("" = as it is); last the caller's wishes (see _event)
-- RETURNS: per repeat 1 fired, 0 another worker did or it is not due, -1 cancelled meanwhile or at its limit, -2 the job id has a row, -3 left out, as another job holds its unique key
-- ERRORS: EMQKIND
-- WRITES: replies; repeat, repeat:<name>; de:<dedup id>; row, pending | g:<group>:pending, ring, gnames, glimit, gauto; wake; announces
-- COST: O(log n) a repeat
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
-- @include _mark
local call = event_begin()
local refusal = settle_kinds(3, 5)
if refusal then return refusal end

local base = KEYS[1]
-- Sent again after its answer was lost: the scores have moved on, so only the kept answer can tell who moved them.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if late then return {} end
if answered then
  for i, verdict in ipairs(answered) do answered[i] = tonumber(verdict) end
  return answered
end

local now = event_now(call)
local verdicts, waiting = {}, 0

local function forget(name, key)
  redis.call('ZREM', base .. 'repeat', name)
  redis.call('DEL', key)
end

local function fire(id, name, seen, following, every)
  local score = tonumber(redis.call('ZSCORE', base .. 'repeat', name))
  if not score then return -1 end
  if score ~= seen or score > now then return 0 end
  local row, key = base .. 'job:' .. id, base .. 'repeat:' .. name
  local fields = row_read(key, 'template', 'limit', 'fired', 'priority', 'group', 'dedup', 'unique', 'ttl',
    'group_limit', 'group_name')
  -- Spoilt since it was seen: whoever looks next will tell.
  if not fields[1] then return 0 end
  local limit, fired = row_count(fields[2]), row_count(fields[3])
  if limit > 0 and fired >= limit then
    forget(name, key)
    return -1
  end
  if redis.call('EXISTS', row) == 1 then return -2 end
  local ttl = row_count(fields[8])
  -- A lifetime that SET refuses would stop the script halfway, with this repeat due for ever.
  local unique = fields[6] and unique_valid(fields[6]) and fields[7] and ttl > 0 and ttl <= 2 ^ 53
  if unique and unique_take(base, id, fields[6], fields[7], ttl) then
    if every ~= '' then redis.call('HSET', key, 'every_ms', every) end
    redis.call('ZADD', base .. 'repeat', following, name)
    return -3
  end
  local job = {'state', 'pending', 'attempts', '0', 'payload', fields[1]}
  if row_count(fields[4]) ~= 0 then
    job[#job + 1] = 'priority'
    job[#job + 1] = fields[4]
  end
  local group_limit = fields[5] and row_whole(fields[9])
  group_limit = group_limit and group_limit > 0 and string.format('%.0f', group_limit)
  if fields[5] then
    job[#job + 1] = 'group'
    job[#job + 1] = fields[5]
  end
  if group_limit then
    job[#job + 1] = 'group_limit'
    job[#job + 1] = group_limit
  end
  local group_name = fields[5] and fields[10]
  if group_name then
    job[#job + 1] = 'group_name'
    job[#job + 1] = group_name
  end
  if unique then
    for _, word in ipairs({'dedup', fields[6], 'unique', fields[7], 'ttl', fields[8]}) do job[#job + 1] = word end
  end
  redis.call('HSET', row, unpack(job))
  place_waiting(base, id, fields[5], fields[4], group_limit, group_name)
  waiting = waiting + 1
  event_job(base, call, 'enqueued', id, fields[1], 0, ',"repeat":' .. event_quote(name))
  if limit > 0 and fired + 1 >= limit then
    forget(name, key)
  else
    redis.call('HSET', key, 'fired', fired + 1)
    if every ~= '' then redis.call('HSET', key, 'every_ms', every) end
    redis.call('ZADD', base .. 'repeat', following, name)
  end
  return 1
end

for i = 3, #ARGV, 5 do
  verdicts[#verdicts + 1] = fire(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4])
end
wake(base, waiting)
mark_write(base, ARGV[1], ARGV[2], table.concat(verdicts, ' '))
return verdicts
