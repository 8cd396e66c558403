-- The held-by-a-worker marker, alive for two leases: a hash-field TTL where the server has them, else a key.

-- Mark a row as claimed under `token`, which is the number of its claims.
local function lock_claim(row, token, lease, as_field)
  if as_field then
    redis.call('HSET', row, 'state', 'active', 'attempts', token, 'lock', token)
    redis.call('HPEXPIRE', row, lease * 2, 'FIELDS', 1, 'lock')
  else
    redis.call('HSET', row, 'state', 'active', 'attempts', token)
    redis.call('SET', row .. ':lock', token, 'PX', lease * 2)
  end
end

-- Refresh the marker with the lease.
local function lock_renew(row, token, lease, as_field)
  if as_field then
    redis.call('HSET', row, 'lock', token)
    redis.call('HPEXPIRE', row, lease * 2, 'FIELDS', 1, 'lock')
  else
    redis.call('SET', row .. ':lock', token, 'PX', lease * 2)
  end
end

-- The refusal of what may not happen to a job that a worker holds; nil when none does. `field` is the row's `lock`.
local function lock_refusal(row, id, field)
  if field or redis.call('EXISTS', row .. ':lock') == 1 then
    return redis.error_reply('EMQLOCK ' .. id .. ' is held by a worker')
  end
end
