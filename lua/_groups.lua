-- Every group that can have waiting jobs. A non-empty lane is in the ring, or paused, or at its limit, so that it has
-- running jobs: together those name them all, and no further index is kept. A limit of 0, which only another runtime sets,
-- is looked for among few limits only, unless all groups with settings are wanted.
local function groups_of(base, settings)
  local seen, groups = {}, {}
  local function add(names)
    for _, name in ipairs(names) do
      if not seen[name] then
        seen[name] = true
        groups[#groups + 1] = name
      end
    end
  end
  add(redis.call('LRANGE', base .. 'ring', 0, -1))
  add(redis.call('SMEMBERS', base .. 'paused'))
  add(redis.call('HKEYS', base .. 'gactive'))
  if settings or redis.call('HLEN', base .. 'glimit') <= 1000 then add(redis.call('HKEYS', base .. 'glimit')) end
  if settings then
    add(redis.call('HKEYS', base .. 'gweight'))
    add(redis.call('HKEYS', base .. 'gauto'))
  end
  return groups
end
