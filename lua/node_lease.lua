#!lua
-- Lease a node id to one minting process, or renew the one it has.
-- KEYS[1] nodes  prefix  {emq}:node:
-- ARGV: owner, lease ms, the node id held so far (-1 = none), where to start looking
-- RETURNS: a node id from 0 to 1023, or -1 when all are taken
-- ERRORS: none
-- WRITES: {emq}:node:<n>
-- COST: O(node ids taken)
local nodes, owner, lease, held = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if held >= 0 then
  local key = nodes .. string.format('%d', held)
  local holder = redis.call('GET', key)
  if not holder or holder == owner then
    redis.call('SET', key, owner, 'PX', lease)
    return held
  end
end
for i = 0, 1023 do
  local node = (tonumber(ARGV[4]) + i) % 1024
  if redis.call('SET', nodes .. string.format('%d', node), owner, 'NX', 'PX', lease) then return node end
end
return -1
