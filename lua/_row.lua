-- Rows as another runtime, or a hand, may have left them: nothing that is read may stop a script halfway.

-- The fields of a row; all nil when the key is no hash, as when it is absent.
local function row_read(row, ...)
  local fields = redis.pcall('HMGET', row, ...)
  if fields.err then return {} end
  return fields
end

-- A counter in a field; what is no finite number counts from 0.
local function row_count(value)
  local count = tonumber(value or 0)
  if not count or count ~= count or math.abs(count) == math.huge then return 0 end
  return math.floor(count)
end
