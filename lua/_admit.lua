-- Admission of one job, whose entry of 7 starts at ARGV[at]: id, payload, mode ("now" | "in" | "at"), ms (delay for
-- "in", unix ms for "at"), priority, group ("" = flat), and "" or a JSON object of what few jobs have: `name` of the
-- group, its `limit`; `dedup`, `unique`, `ttl` ms; `parent`, `parent_queue`, `policy`; `children`, their number.

-- What admissions of one call have in common, beside what it announces: how many wait, the schedule's head as they
-- change it, and whether it is a whole flow that is known to be new.
local function admit_begin(call, whole)
  call.waiting, call.whole = 0, whole
  return call
end

local function admit_extras(base, id, fields, more)
  local function field(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if more.dedup then
    field('dedup', more.dedup)
    field('unique', more.unique)
    field('ttl', string.format('%.0f', more.ttl))
  end
  if more.parent then
    field('parent', more.parent)
    if more.parent_queue then field('parent_queue', more.parent_queue) end
    if more.policy then field('parent_policy', more.policy) end
  end
  if more.name then field('group_name', more.name) end
  if more.limit then field('group_limit', more.limit) end
  if more.children then
    redis.call('SET', base .. 'job:' .. id .. ':dependencies', more.children)
    redis.call('ZADD', base .. 'flow:parents', 0, id)
  end
end

-- Whether the parent of a child that is sent again knows how that ended, or is gone itself: it must not run twice.
local function admit_ended(base, parent, id)
  local row = base .. 'job:' .. parent
  if redis.call('EXISTS', row) == 0 then return true end
  for _, known in ipairs({':processed', ':failed', ':unsuccessful'}) do
    if redis.pcall('HEXISTS', row .. known, id) == 1 then return true end
  end
  return false
end

-- Answers 1 enqueued (a flow parent: held), 2 scheduled, 0 duplicate with the same payload, -1 duplicate with another
-- payload, -2 a child that has ended already, or the id of the job that holds this one's unique key.
local function admit_entry(base, at, call)
  local id, payload, mode, priority, group = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 4], ARGV[at + 5]
  local more = ARGV[at + 6] ~= '' and cjson.decode(ARGV[at + 6])
  local row = base .. 'job:' .. id
  -- A number of JSON is a double, which Lua writes as 1e+15 when it is large.
  if more and more.limit then more.limit = string.format('%.0f', more.limit) end
  if redis.call('EXISTS', row) == 1 then
    return row_read(row, 'payload')[1] == payload and 0 or -1
  end
  if more and more.parent and not more.parent_queue and not call.whole and admit_ended(base, more.parent, id) then return -2 end
  if mode ~= 'now' and not call.earliest then
    -- Read when the first job for later needs them: most admissions are for now.
    call.earliest = tonumber(redis.call('ZRANGE', base .. 'schedule', 0, 0, 'WITHSCORES')[2]) or math.huge
  end
  local run_at = mode ~= 'now' and tonumber(ARGV[at + 3]) + (mode == 'in' and event_now(call) or 0)
  if more and more.dedup then
    -- The time that it waits for its run-at is not part of the time that it may take.
    local wait = more.unique ~= 'window' and run_at and math.max(run_at - event_now(call), 0) or 0
    local holder = unique_take(base, id, more.dedup, more.unique, string.format('%.0f', more.ttl + wait))
    if holder then return holder end
  end
  local held = more and more.children
  local state = held and 'awaiting_children' or run_at and 'scheduled' or 'pending'
  local fields = {'state', state, 'attempts', '0', 'payload', payload}
  if priority ~= '0' then
    fields[#fields + 1] = 'priority'
    fields[#fields + 1] = priority
  end
  if group == '' then
    group = false
  else
    fields[#fields + 1] = 'group'
    fields[#fields + 1] = group
  end
  if more then admit_extras(base, id, fields, more) end
  redis.call('HSET', row, unpack(fields))
  if held then
    event_job(base, call, 'enqueued', id, payload, 0)
    return 1
  end
  if run_at then
    redis.call('ZADD', base .. 'schedule', run_at, id)
    if run_at < call.earliest then call.earliest, call.earlier = run_at, true end
    local delay = string.format('%.0f', math.max(run_at - event_now(call), 0))
    event_job(base, call, 'scheduled', id, payload, 0, ',"delay_ms":"' .. delay .. '"')
    return 2
  end
  place_waiting(base, id, group, priority, more and more.limit, more and more.name)
  call.waiting = call.waiting + 1
  event_job(base, call, 'enqueued', id, payload, 0)
  return 1
end

-- Wake the workers that this call has something for. A parked worker sleeps until the earliest run-at that it knows; an
-- earlier one must wake it to look again.
local function admit_end(base, call)
  wake(base, call.waiting + (call.earlier and 1 or 0))
end
