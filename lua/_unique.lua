-- Unique jobs: a key names the job that keeps others like it out. Row fields `dedup` (the key's name), `unique` (until
-- when: "start", "done" or "window") and `ttl` (ms).

-- Whether a name read from a row may stand in a key: another runtime, or a hand, may have left anything there.
local function unique_valid(dedup)
  return #dedup <= 255 and string.find(dedup, '^[%w._-]+$') ~= nil
end

-- Let go of the key, if it still points at this job.
local function unique_release(base, id)
  local dedup = row_read(base .. 'job:' .. id, 'dedup')[1]
  if not dedup or not unique_valid(dedup) then return end
  local key = base .. 'de:' .. dedup
  if redis.pcall('GET', key) == id then redis.call('DEL', key) end
end

-- Whether what a key holds is a job's id, and no more: it goes into a key's name and into the answer.
local function unique_holder(value)
  return type(value) == 'string' and #value == 14 and string.find(value, '^JOB%w+$') ~= nil
end

-- Take the key for a new job; answers the job that holds it when there is one. Until its end at the latest: `ttl` ms.
local function unique_take(base, id, dedup, unique, ttl)
  local key = base .. 'de:' .. dedup
  local holder = redis.pcall('GET', key)
  if unique_holder(holder) and holder ~= id then
    -- A window that nothing would ever end is none.
    if unique == 'window' and redis.call('PTTL', key) >= 0 then return holder end
    -- Another runtime may have ended the holder, or started it, without letting go of the key. How long it holds the
    -- key is the holder's to say; where it does not, another runtime admitted it.
    local fields = row_read(base .. 'job:' .. holder, 'state', 'unique')
    local started = fields[1] == 'active' and (fields[2] or unique) == 'start'
    if fields[1] and fields[1] ~= 'dead' and not started then return holder end
  end
  redis.call('SET', key, id, 'PX', ttl)
end

-- Take the key back for a job that waits again, if it is free; answers the job that holds it when another one does.
local function unique_retake(base, id)
  local fields = row_read(base .. 'job:' .. id, 'dedup', 'unique', 'ttl')
  local ttl = row_count(fields[3])
  if not fields[1] or not unique_valid(fields[1]) or fields[2] == 'window' or ttl <= 0 then return end
  return unique_take(base, id, fields[1], fields[2] or 'done', string.format('%.0f', ttl))
end
