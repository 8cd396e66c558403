-- Tags of cached rows: tag:<TAG id> holds the version under which the rows of a tag were last dropped, and tag:top the
-- newest version that any row with tags was given, so that dropping a tag is newer than all of them whatever clocks say.

-- The newest version of the tags that ARGV names from `first` on.
local function tags_floor(base, first)
  local floor
  for i = first, #ARGV do floor = version_top(version_at(base .. 'tag:' .. ARGV[i]), floor) end
  return floor
end

-- Note the version of a row that has tags, for as long as such a row can live.
local function tags_note(base, first, version, keep)
  if #ARGV < first then return end
  local key = base .. 'tag:top'
  redis.call('SET', key, version_top(version_at(key), version), 'PX', keep)
end
