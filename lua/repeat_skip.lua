#!lua flags=allow-oom
-- Move repeats on without a job, or drop the name of one whose registration is gone; only where each was seen.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: per repeat name, the score it was seen at, its next score ("" = drop the name), its new every_ms ("" = as it is)
-- RETURNS: per repeat 1 moved or dropped, 0 it stands elsewhere or is not to be dropped
-- ERRORS: none
-- WRITES: repeat, repeat:<name>.every_ms
-- COST: O(log n) a repeat
-- @include _row
local base, moved = KEYS[1], {}

local function skip(name, seen, following, every)
  local key = base .. 'repeat:' .. name
  local score = tonumber(redis.call('ZSCORE', base .. 'repeat', name))
  if not score or score ~= seen then return 0 end
  if following == '' then
    -- Somebody may have registered it again since it was seen.
    if redis.call('EXISTS', key) == 1 then return 0 end
    redis.call('ZREM', base .. 'repeat', name)
    return 1
  end
  redis.call('ZADD', base .. 'repeat', following, name)
  if every ~= '' and row_read(key, 'every_ms')[1] then redis.call('HSET', key, 'every_ms', every) end
  return 1
end

for i = 1, #ARGV, 4 do
  moved[#moved + 1] = skip(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3])
end
return moved
