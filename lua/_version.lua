-- Versions of cached values (wire §9): branded ids of which the last 11 bytes count. What is no version is nil here, as
-- what is not there: a short or damaged frame is a miss.

-- The version that `bytes` begin with. A server has the classes of the C locale, whatever order its letters have.
local function version_of(bytes)
  if type(bytes) ~= 'string' then return nil end
  local version = string.match(bytes, '^%u%u%u%w%w%w%w%w%w%w%w%w%w%w')
  -- The last snowflake of all is none: whatever is a version has a next one.
  if version and id_below(string.sub(version, 4), 'AzL8n0Y58m7') then return version end
end

-- The version under a key, nil also when it holds no string: nothing of ours is lost by writing over it.
local function version_at(key)
  return version_of(redis.pcall('GETRANGE', key, 0, 13))
end

-- Whether version `one` is newer than `other`, which may be nil.
local function version_newer(one, other)
  return not other or id_below(string.sub(other, 4), string.sub(one, 4))
end

-- The newer of two, either of which may be nil.
local function version_top(one, other)
  if one and version_newer(one, other) then return one end
  return other
end

-- The first eleven digits above `digits` of which those past `last` are 0.
local function version_raised(digits, last)
  local alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
  local place = last
  while string.sub(digits, place, place) == 'z' do place = place - 1 end
  local digit = string.find(alphabet, string.sub(digits, place, place), 1, true)
  return string.sub(digits, 1, place - 1) .. string.sub(alphabet, digit + 1, digit + 1) .. string.rep('0', 11 - place)
end

-- `version`, or one just above `floor` when it is not newer than that; of its own kind in any case. The last digits stay
-- its own: what was given above one floor before, and is forgotten here, may still be known elsewhere as another value.
local function version_above(version, floor)
  if version_newer(version, floor) then return version end
  local digits = string.sub(floor, 4)
  local raised = string.sub(version_raised(digits, 8), 1, 8) .. string.sub(version, 12)
  if not id_below(raised, 'AzL8n0Y58m7') then raised = version_raised(digits, 11) end
  return string.sub(version, 1, 3) .. raised
end
