-- Push n wake tokens (at most 64) for the workers parked on BLPOP; the list is kept at 64.
local function wake(base, n)
  if n <= 0 then return end
  if n > 64 then n = 64 end
  local tokens = {}
  for i = 1, n do tokens[i] = '1' end
  if redis.call('LPUSH', base .. 'wake', unpack(tokens)) > 64 then
    redis.call('LTRIM', base .. 'wake', 0, 63)
  end
end
