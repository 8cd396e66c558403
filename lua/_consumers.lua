-- A log's consumer groups as the server tells of them.

-- The fields of a group as XINFO names them; nil when there is no such group, no such log, or no stream there.
local function consumers_group(key, group)
  local rows = redis.pcall('XINFO', 'GROUPS', key)
  for _, row in ipairs(rows) do
    local fields = {}
    for at = 1, #row, 2 do fields[row[at]] = row[at + 1] end
    if fields.name == group then return fields end
  end
end

-- How many entries the stream ever had, and how many it has. The answer it is taken from holds a copy of the oldest and
-- the newest record, whatever their size.
local function consumers_counts(key)
  local info, added, length = redis.pcall('XINFO', 'STREAM', key), 0, 0
  for at = 1, #info, 2 do
    if info[at] == 'entries-added' then added = info[at + 1] end
    if info[at] == 'length' then length = info[at + 1] end
  end
  return added, length
end

-- How many entries still wait for their first delivery, and how many went before they had one; -1 of what the server
-- cannot tell: how far a group has read that was made without ENTRIESREAD, or what was deleted out of the middle.
local function consumers_standing(key, fields)
  local lag, read = fields.lag, fields['entries-read']
  if not lag then return -1, -1 end
  -- A group that stands in the middle of what is kept has lost nothing to the trim, and is told so at no cost.
  local length = redis.call('XLEN', key)
  if lag < length then return lag, read and 0 or -1 end
  -- Some servers count in what was trimmed, others do not.
  if not read then return length, -1 end
  local added = consumers_counts(key)
  return length, math.max(0, added - length - read)
end

-- How often a pending entry was delivered; nil when this consumer does not hold it.
local function consumers_deliveries(key, group, consumer, id)
  local held = redis.call('XPENDING', key, group, id, id, 1, consumer)[1]
  return held and held[4]
end
