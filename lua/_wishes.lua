-- What of a call is to be announced: its caller's wishes, read before it is known whether anything is (see _event).

-- Take the caller's wishes off ARGV, so that what is left are the script's own arguments.
local function event_begin()
  local count = tonumber(ARGV[#ARGV])
  ARGV[#ARGV] = nil
  local call = {texts = {}}
  if count == 0 then return call end
  local first = #ARGV - count + 1
  local more = ARGV[first + 1]
  call.top = {}
  call.names = ARGV[first]
  if string.byte(more) == 123 then
    more = cjson.decode(more)
    call.actors, call.log, call.ms, call.low, call.sharded = more.actors, more.log, more.ms, more.low, more.sharded
  else
    -- Read when something is announced: most calls announce nothing.
    call.stamp = more
  end
  for i = first + 2, #ARGV do call.texts[#call.texts + 1] = ARGV[i] end
  for i = #ARGV, first, -1 do ARGV[i] = nil end
  return call
end

-- The server's time of this call.
local function event_now(call)
  if not call.now then call.now = clock_ms() end
  return call.now
end

-- Whether `name` is wanted; of a job of `actor`, when it is known.
local function event_wanted(call, name, actor)
  local names = actor and call.actors and call.actors[actor] or call.names
  return names ~= nil and string.find(names, ' ' .. name .. ' ', 1, true) ~= nil
end

-- Whether `name` is wanted of anybody: most names are known not to be before a payload is looked at.
local function event_heard(call, name)
  return call.actors ~= nil or event_wanted(call, name)
end

-- Whether `name` is to be announced: it is wanted, and a log keeps it, or somebody may be subscribed. That nobody is can
-- be known where there is one server alone: a cluster has subscribers on other nodes, and a replica has its own, also one
-- that is cut off and will ask for what it missed.
local function event_told(base, call, name)
  if not event_heard(call, name) then return false end
  if call.log or call.sharded or redis.pcall('HGET', base .. 'meta', 'events_log') then return true end
  local server = redis.pcall('INFO', 'replication', 'cluster')
  if type(server) ~= 'string' or not string.find(server, 'connected_slaves:0\r', 1, true)
    or not string.find(server, 'repl_backlog_active:0\r', 1, true)
    or not string.find(server, 'cluster_enabled:0\r', 1, true) then
    return true
  end
  return redis.pcall('PUBSUB', 'NUMPAT') ~= 0 or redis.pcall('PUBSUB', 'NUMSUB', base .. 'events')[2] ~= 0
end
