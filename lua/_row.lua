-- Rows as another runtime, or a hand, may have left them: nothing that is read may stop a script halfway.

-- The fields of a row; all nil when the key is no hash, as when it is absent.
local function row_read(row, ...)
  local fields = redis.pcall('HMGET', row, ...)
  if fields.err then return {} end
  return fields
end

-- The whole number in a field, rounded down; nil when it holds no finite number.
local function row_whole(value)
  local number = tonumber(value)
  if not number or number ~= number or math.abs(number) == math.huge then return nil end
  return math.floor(number)
end

-- A counter in a field; what is no finite number counts from 0.
local function row_count(value)
  return row_whole(value) or 0
end
