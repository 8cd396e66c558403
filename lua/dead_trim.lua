#!lua flags=allow-oom
-- Keep the dead within bounds: the oldest go when there are too many, and those that have been dead for too long.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: most dead jobs to keep (0 = any number), ms for which they are kept (0 = for ever), most jobs to look at in this call, the id to go on behind ("" = from the oldest); last the caller's wishes (see _event)
-- RETURNS: {dropped, the id to go on behind or "" when all are within bounds}
-- ERRORS: none
-- WRITES: dead, rows and their side keys, row.died, de:<dedup id>; announces
-- COST: O(log n) a job looked at
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
-- @include _forget
local call = event_begin()
local base, most, keep, limit = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, dropped = event_now(call), 0

local function drop(id)
  redis.call('ZREM', base .. 'dead', id)
  event_row(base, call, 'removed', id, ',"message":"dropped"')
  forget_job(base, id, 'dropped', call)
  dropped = dropped + 1
end

local excess = most > 0 and redis.call('ZCARD', base .. 'dead') - most or 0
if excess > 0 then
  local oldest = redis.call('ZRANGE', base .. 'dead', 0, math.min(excess, limit) - 1)
  for _, id in ipairs(oldest) do drop(id) end
  if excess > limit or (keep > 0 and excess == limit) then
    -- This call's share is used up; below the last of these there are none any more.
    return {dropped, ARGV[4] ~= '' and ARGV[4] or oldest[#oldest]}
  end
end
if keep == 0 then return {dropped, ''} end

-- All have score 0, so a page goes on behind an id.
local behind = ARGV[4] == '' and '-' or '(' .. ARGV[4]
limit = limit - dropped
local page = redis.call('ZRANGEBYLEX', base .. 'dead', behind, '+', 'LIMIT', 0, limit)
for _, id in ipairs(page) do
  local row = base .. 'job:' .. id
  local fields = row_read(row, 'state', 'died')
  local died = tonumber(fields[2])
  if not fields[1] then
    drop(id)
  elseif not (died and died <= now) then
    -- Buried by a runtime that does not note the time, or notes one that cannot be: it counts from here.
    redis.call('HSET', row, 'died', now)
  elseif died + keep <= now then
    drop(id)
  end
end
return {dropped, #page == limit and page[#page] or ''}
