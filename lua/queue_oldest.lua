#!lua flags=no-writes
-- Find the oldest waiting job, flat or in lanes, a bounded number of looks a call; the caller goes on where it stopped.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: most looks in this call, the score to go on above in the first place ("" = from the first), then places (a group, "" = flat)
-- RETURNS: {oldest id of those looked at or "", the number of the place that is not done or 0 when all are, score}
-- ERRORS: none
-- WRITES: nothing
-- COST: O(looks * log n)
-- @include _row
-- @include _wake
-- @include _lane
-- @include _order
local base, looks, above = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local oldest = ''
-- An id that is none tells no time.
local shape = '^JOB' .. string.rep('%w', 11) .. '$'

for i = 3, #ARGV do
  local key = ARGV[i] == '' and base .. 'pending' or lane_key(base, ARGV[i])
  local score = i == 3 and above or ''
  local left = redis.call('ZCARD', key)
  -- Ids of one score are in mint order, so each distinct score (priority) costs one look.
  while left > 0 do
    if looks <= 0 then return {oldest, i - 2, score} end
    looks = looks - 1
    local least = score == '' and '-inf' or '(' .. score
    local head = redis.call('ZRANGEBYSCORE', key, least, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not head[1] then break end
    if string.find(head[1], shape) and (oldest == '' or id_below(head[1], oldest)) then oldest = head[1] end
    score = head[2]
    left = left - 1
  end
end
return {oldest, 0, ''}
