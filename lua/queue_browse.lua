#!lua flags=no-writes
-- List ids of one state, newest first.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: set ("pending" | "active" | "schedule" | "dead" | "g:<group>:pending"), most ids, before (an id, or "")
-- RETURNS: ids, newest first
-- ERRORS: none
-- WRITES: nothing
-- COST: O(runs * (log n + count)) for pending, dead and lanes; O(n) for active and schedule, whose scores are times
-- @include _order
local key, count, before = KEYS[1] .. ARGV[1], tonumber(ARGV[2]), ARGV[3]
local found = {}

-- Ids sort by mint time, so a run of equal scores needs no second index; each distinct score (priority) is one run, and
-- the runs are merged.
local function keep(id)
  if before == '' or id_below(id, before) then found[#found + 1] = id end
end

if ARGV[1] == 'active' or ARGV[1] == 'schedule' then
  for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do keep(id) end
else
  local high = redis.call('ZCARD', key) - 1
  while high >= 0 do
    -- The run of the score at rank `high` is [low, high]; ids inside it are in byte order.
    local score = redis.call('ZRANGE', key, high, high, 'WITHSCORES')[2]
    local low = redis.call('ZCOUNT', key, '-inf', '(' .. score)
    local from, past = low, high + 1
    while before ~= '' and from < past do
      local middle = math.floor((from + past) / 2)
      if id_below(redis.call('ZRANGE', key, middle, middle)[1], before) then from = middle + 1 else past = middle end
    end
    local last = past - 1
    if last >= low then
      for _, id in ipairs(redis.call('ZRANGE', key, math.max(low, last - count + 1), last)) do keep(id) end
    end
    high = low - 1
  end
end
table.sort(found, function(a, b) return id_below(b, a) end)
for i = #found, count + 1, -1 do found[i] = nil end
return found
