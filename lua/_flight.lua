-- The flight that loads a row: <id>:flight holds the version it loads under, "1" when somebody waits for it ("0" when
-- nobody does), when its lease ends in unix ms, 13 digits, and its owner. Whoever dies with it is replaced when the lease
-- has ended. The key is kept for longer: should he not be dead after all, what is put or dropped is still above his.

-- The owner of the flight, its version, whether somebody may wait for it, and when its lease ends; nil when there is none.
local function flight_read(row)
  local found = redis.pcall('GET', row .. ':flight')
  local version = version_of(found)
  local deadline = version and tonumber(string.match(found, '^%d%d%d%d%d%d%d%d%d%d%d%d%d', 16))
  if deadline and #found > 28 then return string.sub(found, 29), version, string.sub(found, 15, 15) == '1', deadline end
end

-- Begin a flight, or go on with one.
local function flight_write(row, version, awaited, deadline, owner, left)
  local key = row .. ':flight'
  redis.call('SET', key, version .. (awaited and '1' or '0') .. string.format('%013.0f', deadline) .. owner, 'PX', left)
end

-- Note that somebody waits for the flight.
local function flight_await(row)
  redis.call('SETRANGE', row .. ':flight', 14, '1')
end

-- Tell those who wait for the flight of `owner` what has become of it.
local function flight_wake(base, id, what, owner, payload)
  redis.call('PUBLISH', base .. 'wake', id .. ' ' .. what .. ' ' .. owner .. ' ' .. (payload or ''))
end

-- End the flight of `owner`. When it was not his any more, nobody knows who waits for him, so all are told.
local function flight_end(base, id, what, owner, payload)
  local row = base .. id
  local holder, _, awaited = flight_read(row)
  local mine = holder == owner
  if mine then redis.call('DEL', row .. ':flight') end
  if awaited or not mine then flight_wake(base, id, what, owner, payload) end
  return mine
end

-- Take the row from whatever flight there is: what it loads is old by now.
local function flight_detach(base, id, what)
  local row = base .. id
  local holder, _, awaited = flight_read(row)
  if not holder then return end
  redis.call('DEL', row .. ':flight')
  if awaited then flight_wake(base, id, what, holder) end
end
