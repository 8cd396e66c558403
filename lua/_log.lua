-- Records of a retained log (wire §8): the entry's id is "<unix ms>-<low 22 bits>" of the record's snowflake, and its
-- first field `id` the EVT id of the same snowflake.

-- The EVT id of a snowflake. It has 63 bits where a number of Lua holds 53, so it is divided by 62^5 in two steps, the
-- time first; each limb of them fits, and so do the two halves of six and five digits.
local function log_brand(ms, low)
  local stamp = ms - 1704067200000
  local rest = stamp % 916132832
  local lower = rest * 4194304 + low
  local tail = lower % 916132832
  local head = (stamp - rest) / 916132832 * 4194304 + (lower - tail) / 916132832
  local alphabet, digits = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz', {}
  for place = 11, 7, -1 do
    local digit = tail % 62
    digits[place], tail = string.sub(alphabet, digit + 1, digit + 1), (tail - digit) / 62
  end
  for place = 6, 1, -1 do
    local digit = head % 62
    digits[place], head = string.sub(alphabet, digit + 1, digit + 1), (head - digit) / 62
  end
  return 'EVT' .. table.concat(digits)
end

-- The highest id that the stream ever gave, as two numbers, also when no entry is left of it; nil of what is no stream.
local function log_top(key)
  local info = redis.pcall('XINFO', 'STREAM', key)
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then
      local ms, low = string.match(info[at + 1], '^(%d+)-(%d+)$')
      return tonumber(ms), tonumber(low)
    end
  end
end

-- Where a record goes: its own minted place, or the next one above `top` when that is not above it. Nil where ids end.
local function log_place(ms, low, top)
  if top.ms and (top.ms > ms or (top.ms == ms and top.low >= low)) then
    ms, low = top.ms, top.low + 1
    -- A stranger may have used more than 22 bits.
    if low >= 4194304 then ms, low = ms + 1, 0 end
  end
  if ms < 1704067200000 then ms, low = 1704067200000, 0 end
  if ms <= 3903090455551 then return ms, low end
end

-- Append a record under the minted snowflake (ms, low), or under the next one above the stream's top when that is
-- higher: many writers, none refused. `fields` is a flat array of names and values, without `id`. Whoever appends more
-- than one record to a key gives one table `top` to all the calls, {} at first, which then look the top up once.
-- Answers the entry's id and the EVT id; or nil and the reason, with nothing written: it never raises an error.
local function log_add(key, ms, low, fields, top)
  top = top or {}
  local reason
  for try = 1, 2 do
    ms, low = log_place(ms, low, top)
    if not ms then return nil, 'EMQSTATE the log has an entry of the year 2093, where record ids end: begin another log' end
    local evt = log_brand(ms, low)
    local added = redis.pcall('XADD', key, string.format('%.0f-%.0f', ms, low), 'id', evt, unpack(fields))
    if type(added) == 'string' then
      top.ms, top.low = ms, low
      return added, evt
    end
    reason = added.err
    -- Most often the stream's top is above, which is looked up only now: a writer alone never needs it.
    if try == 1 then
      top.ms, top.low = log_top(key)
      if not top.ms then break end
    end
  end
  return nil, reason
end
