-- Lifecycle events: what a transition announces once its verdict is known. A script's last arguments are the caller's
-- wishes: the wanted names, each between spaces; an id minted for the records of a log, as "<ms>-<low>", or JSON with
-- `ms`, `low`, and `actors` (those with wishes of their own), `log` (its name) and `sharded`; then texts of the caller's; and how many all these
-- are. The table that event_begin answers goes wherever something may happen that is announced. A caller that names no
-- log uses the one that `meta.events_log` names, so that what a hand does is in it too.

-- Any bytes as a string of JSON: cjson passes them on as they are, and what is no UTF-8 is no JSON.
local function event_quote(bytes)
  if string.find(bytes, '[\128-\255]') then
    -- As a rule it is valid, which is found out without a walk from character to character: each that is well formed
    -- is taken for a letter, and nothing else may be left.
    local left = bytes
    for _, well_formed in ipairs({'[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
      '[\225-\236\238\239][\128-\191][\128-\191]', '\237[\128-\159][\128-\191]',
      '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]',
      '\244[\128-\143][\128-\191][\128-\191]'}) do
      left = string.gsub(left, well_formed, 'a')
    end
    if not string.find(left, '[\128-\255]') then return cjson.encode(bytes) end
    -- Not from one of our callers, and not worth holding the server for.
    bytes = string.sub(bytes, 1, 4096)
    local kept, i = {}, 1
    while i <= #bytes do
      local char = string.match(bytes, '^[%z\1-\127]+', i)
        or string.match(bytes, '^[\194-\223][\128-\191]', i)
        or string.match(bytes, '^\224[\160-\191][\128-\191]', i)
        or string.match(bytes, '^[\225-\236\238\239][\128-\191][\128-\191]', i)
        or string.match(bytes, '^\237[\128-\159][\128-\191]', i)
        or string.match(bytes, '^\240[\144-\191][\128-\191][\128-\191]', i)
        or string.match(bytes, '^[\241-\243][\128-\191][\128-\191][\128-\191]', i)
        or string.match(bytes, '^\244[\128-\143][\128-\191][\128-\191]', i)
      kept[#kept + 1] = char or '?'
      i = i + (char and #char or 1)
    end
    bytes = table.concat(kept)
  end
  return cjson.encode(bytes)
end

-- The actor that a payload names. Where our own messages and Dramatiq's have it, it is read without the rest; other
-- payloads are read as a whole, unless they are so long that the server would be held.
local function event_actor(payload)
  local actor = string.match(payload, '^{"queue_name":"[%w._-]+","actor_name":"([%w._-]+)"')
    or string.match(payload, '^{"actor_name":"([%w._-]+)"')
  if actor or #payload > 4096 or string.sub(payload, 1, 1) ~= '{' then return actor end
  local read, fields = pcall(cjson.decode, payload)
  return read and type(fields) == 'table' and type(fields.actor_name) == 'string' and fields.actor_name or nil
end

-- Announce: in the log first, whose record's id the live event carries. `rest` are more fields as JSON, each behind a
-- comma. What cannot be announced must not harm the transition; answers what PUBLISH did.
local function event_say(base, call, name, id, rest)
  local job = id and ',"job":' .. (string.find(id, '^%w+$') and '"' .. id .. '"' or event_quote(id)) or ''
  local text = '{"event":"' .. name .. '","at":"' .. event_now(call) .. '"' .. job .. ',"queue":"' ..
    string.sub(base, 6, -3) .. '"' .. rest .. '}'
  if call.log == nil then
    local log = redis.pcall('HGET', base .. 'meta', 'events_log')
    call.log = type(log) == 'string' and string.find(log, '^[%w._-]+$') ~= nil and log
  end
  if call.log then
    local read, found = pcall(cjson.decode, text)
    if call.stamp then
      local ms, low = string.match(call.stamp, '^(%d+)-(%d+)$')
      call.ms, call.low, call.stamp = tonumber(ms), tonumber(low), nil
    end
    if read then
      local fields = {}
      for field, value in pairs(found) do
        fields[#fields + 1] = field
        fields[#fields + 1] = value
      end
      local entry, record = log_add(base .. 'stream:' .. call.log, call.ms, call.low, fields, call.top)
      if entry then text = '{"id":"' .. record .. '",' .. string.sub(text, 2) end
    end
  end
  return redis.pcall(call.sharded and 'SPUBLISH' or 'PUBLISH', base .. 'events', text)
end

-- Announce what happened to a job whose payload and attempts are known.
local function event_job(base, call, name, id, payload, attempts, rest)
  if not event_heard(call, name) then return end
  local actor = event_actor(payload or '')
  if not event_wanted(call, name, actor) then return end
  event_say(base, call, name, id, (actor and ',"actor":' .. event_quote(actor) or '') .. ',"attempt":"' ..
    string.format('%.0f', row_count(attempts)) .. '"' .. (rest or ''))
end

-- Announce what happened to a job, by what its row says: before the row goes.
local function event_row(base, call, name, id, rest)
  if not event_heard(call, name) then return end
  local fields = row_read(base .. 'job:' .. id, 'payload', 'attempts')
  event_job(base, call, name, id, fields[1], fields[2], rest)
end

-- The actor that a text of the caller's names, which is then its first field.
local function event_teller(text)
  local actor = string.match(text, '^,"actor":"([%w._-]+)"')
  if actor or string.sub(text, 1, 9) ~= ',"actor":' then return actor end
  local read, fields = pcall(cjson.decode, '{' .. string.sub(text, 2) .. '}')
  return read and fields.actor or nil
end

-- Announce the end of a run, of which the caller's text for this entry tells. It spares reading the row when it names
-- the actor.
local function event_end(base, call, name, id, text, attempts)
  if not event_heard(call, name) then return end
  local actor = text and event_teller(text)
  if not actor then
    event_row(base, call, name, id, text)
  elseif event_wanted(call, name, actor) then
    event_say(base, call, name, id, ',"attempt":"' .. attempts .. '"' .. text)
  end
end

-- Announce how many jobs a drain has dropped, once no more are left. The caller's texts are how many its calls before
-- this one have dropped, and "1" when it comes again only after a full one.
local function event_drained(base, call, dropped, most, rest)
  local total = (tonumber(call.texts[1]) or 0) + dropped
  local ended = dropped == 0 or (dropped < most and call.texts[2] == '1')
  if ended and total > 0 and event_wanted(call, 'drained') then
    event_say(base, call, 'drained', nil, string.format(',"jobs":"%.0f"', total) .. rest)
  end
end
