-- The held-by-a-worker marker, alive for two leases: a hash-field TTL where the server has them, else a key.

-- Write the marker. `form` is what the server has: "setex" sets a field and its end at once, "field" sets its end, and
-- "key" has no ends of fields.
local function lock_renew(row, token, lease, form)
  if form == 'setex' then
    redis.call('HSETEX', row, 'PX', lease * 2, 'FIELDS', 1, 'lock', token)
  elseif form == 'field' then
    redis.call('HSET', row, 'lock', token)
    redis.call('HPEXPIRE', row, lease * 2, 'FIELDS', 1, 'lock')
  else
    redis.call('SET', row .. ':lock', token, 'PX', lease * 2)
  end
end

-- Mark a row as claimed under `token`, which is the number of its claims.
local function lock_claim(row, token, lease, form)
  redis.call('HSET', row, 'state', 'active', 'attempts', token)
  lock_renew(row, token, lease, form)
end

-- The refusal of what may not happen to a job that a worker holds; nil when none does. `field` is the row's `lock`.
local function lock_refusal(row, id, field)
  if field or redis.call('EXISTS', row .. ':lock') == 1 then
    return redis.error_reply('EMQLOCK ' .. id .. ' is held by a worker')
  end
end
