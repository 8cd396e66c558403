-- Every group that can have waiting jobs. A non-empty lane is in the ring, or paused, or at its limit (so it has running
-- jobs, or its limit is 0): together those name them all, and no further index is kept.
local function groups_of(base)
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
  add(redis.call('HKEYS', base .. 'glimit'))
  return groups
end
