-- Keep a log within what the hash `retention` says of it: its name -> "maxlen=<entries> older_than_ms=<age>", one of the
-- two or both.

-- The two bounds as numbers, nil where there is none.
local function retention_read(text)
  return tonumber(string.match(text, 'maxlen=(%d+)')), tonumber(string.match(text, 'older_than_ms=(%d+)'))
end

-- Trim a log exactly, or at whole nodes of the stream and by ten thousand entries at most for each of the bounds;
-- `oldest` is the unix ms of the oldest entry to keep. Answers how many went, or the table of an error.
local function retention_trim(key, exact, maxlen, oldest)
  local removed = 0
  for strategy, bound in pairs({MAXLEN = maxlen, MINID = oldest and math.max(oldest, 0)}) do
    bound = string.format('%.0f', bound)
    local dropped
    if exact then
      dropped = redis.pcall('XTRIM', key, strategy, '=', bound)
    else
      dropped = redis.pcall('XTRIM', key, strategy, '~', bound, 'LIMIT', 10000)
    end
    if type(dropped) ~= 'number' then return dropped end
    removed = removed + dropped
  end
  return removed
end
