#!lua
-- Append records to a retained log, whoever else appends to it, and keep it within its retention.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, the log's name, then per record ms and low (its minted snowflake), how many arguments its fields are, and these: names and values in turn
-- RETURNS: the EVT id of each record in order; fewer when the log ended before the last one (see _log)
-- ERRORS: EMQSTATE
-- WRITES: stream:<name>, replies
-- COST: O(fields) a record, and what the trim drops
-- @include _clock
-- @include _mark
-- @include _log
-- @include _retention
local base, name = KEYS[1], ARGV[3]
local key = base .. 'stream:' .. name
local ids, top = {}, {}

-- Sent again after its answer was lost: given the first record's place, those of the others follow.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if late then return ids end
if answered then
  local left = tonumber(answered[3])
  top.ms, top.low = tonumber(answered[1]), tonumber(answered[2]) - 1
  local at = 4
  while left > 0 do
    local ms, low = log_place(tonumber(ARGV[at]), tonumber(ARGV[at + 1]), top)
    ids[#ids + 1] = log_brand(ms, low)
    top.ms, top.low = ms, low
    at, left = at + 3 + tonumber(ARGV[at + 2]), left - 1
  end
  return ids
end

local rule = redis.call('HGET', base .. 'retention', name)
local at, first = 4, nil
while at <= #ARGV do
  local count, fields = tonumber(ARGV[at + 2]), {}
  for i = 1, count do fields[i] = ARGV[at + 2 + i] end
  local id, evt = log_add(key, tonumber(ARGV[at]), tonumber(ARGV[at + 1]), fields, top)
  if not id then
    -- The first one meets what is wrong with the key; those behind it can only find that the log has ended.
    if first then break end
    if string.find(evt, '^WRONGTYPE') then return redis.error_reply('EMQSTATE the key of the log ' .. name .. ' is no stream') end
    return redis.error_reply(evt)
  end
  first = first or string.gsub(id, '-', ' ')
  ids[#ids + 1] = evt
  at = at + 3 + count
end
if first then mark_write(base, ARGV[1], ARGV[2], first .. ' ' .. #ids) end
if rule then
  local maxlen, age = retention_read(rule)
  retention_trim(key, false, maxlen, age and clock_ms() - age)
end
return ids
