-- Push n wake tokens (at most 64) for the workers parked on BLPOP; the list is kept at 64.
local function wake(base, n)
  if n <= 0 then return end
  -- Looking first spares a push and a trim while nobody is parked, which is when the queue is busiest.
  n = math.min(n, 64 - redis.call('LLEN', base .. 'wake'))
  if n <= 0 then return end
  local tokens = {}
  for i = 1, n do tokens[i] = '1' end
  redis.call('LPUSH', base .. 'wake', unpack(tokens))
end

-- Room for n jobs under the queue's concurrency ceiling is news for the workers parked because of it.
local function wake_room(base, n)
  if n > 0 and redis.call('HEXISTS', base .. 'meta', 'concurrency') == 1 then wake(base, n) end
end
