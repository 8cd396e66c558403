#!lua flags=no-writes
-- List the groups that have waiting or active jobs, or a setting.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: groups, in no order
-- ERRORS: none
-- WRITES: nothing
-- COST: O(lanes)
-- @include _groups
local base, groups, seen = KEYS[1], {}, {}
for _, names in ipairs({groups_of(base), redis.call('HKEYS', base .. 'glimit'), redis.call('HKEYS', base .. 'gweight')}) do
  for _, name in ipairs(names) do
    if not seen[name] then
      seen[name] = true
      groups[#groups + 1] = name
    end
  end
end
return groups
