#!lua flags=no-writes
-- Read a queue's pause and its ceilings, as a claim understands them.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: {claims a window or -1, the window's length in ms, active jobs at most or -1, paused 0 | 1}
-- ERRORS: none
-- WRITES: nothing
-- COST: O(1)
-- @include _row
local base = KEYS[1]
local meta = redis.call('HMGET', base .. 'meta', 'max', 'duration', 'concurrency', 'paused')
-- A ceiling below 0 lets through as little as 0 does.
local function ceiling(value)
  local number = row_whole(value)
  return number and math.max(number, 0) or -1
end
return {ceiling(meta[1]), math.max(row_whole(meta[2]) or 1000, 1), ceiling(meta[3]), (meta[4] and meta[4] ~= '0') and 1 or 0}
