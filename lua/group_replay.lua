#!lua
-- Give buried entries back to the groups that gave them up, and to no others: pending, idle, and never delivered.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, the one group ("" = all), the dead record's entry id to go on behind ("" = from the first), most dead records to look at, most to give back, the consumer to hold them, ms of idleness to leave them with
-- RETURNS: {the id to go on behind or "" at the end, how many were given back, how many stay because the log has the entry no more, or the group is gone}
-- ERRORS: EMQSTATE
-- WRITES: stream:<log>, stream:<log>.dead
-- COST: O(dead records looked at * their fields + groups)
-- @include _consumers
local base, only, last, left = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local key = base .. 'stream:' .. ARGV[1]
local row = key .. '.dead'
local page = redis.pcall('XRANGE', row, last == '' and '-' or '(' .. last, '+', 'COUNT', ARGV[4])
if page.err then return redis.error_reply('EMQSTATE the key ' .. row .. ' holds no log: delete it, or use another name') end
local known, back, stay = {}, 0, 0

-- Give an entry back; false when the log has it no more, or the group is gone.
local function give_back(group, id)
  if known[group] == nil then known[group] = consumers_group(key, group) and true or false end
  if not known[group] then return false end
  -- Anybody may have written the id.
  local entry = redis.pcall('XRANGE', key, id, id)
  if entry.err or not entry[1] or entry[1][1] ~= id then return false end
  -- One that is pending again is in somebody's hand already.
  if #redis.call('XPENDING', key, group, id, id, 1) > 0 then return true end
  local claimed = redis.call('XCLAIM', key, group, ARGV[6], 0, id, 'IDLE', ARGV[7], 'RETRYCOUNT', 0, 'FORCE', 'JUSTID')
  return #claimed > 0
end

for _, record in ipairs(page) do
  if left == 0 then return {last, back, stay} end
  last = record[1]
  local fields = {}
  for at = 1, #record[2], 2 do fields[record[2][at]] = record[2][at + 1] end
  local group, id = fields['dead.group'], fields['dead.entry']
  if group and id and (only == '' or only == group) then
    if give_back(group, id) then
      redis.call('XDEL', row, last)
      back, left = back + 1, left - 1
    else
      stay = stay + 1
    end
  end
end
return {#page == tonumber(ARGV[4]) and last or '', back, stay}
