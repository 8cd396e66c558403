#!lua flags=no-writes
-- Read whole rows, each with the set that holds it.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: ids
-- RETURNS: per id {} when absent, else {state, run-at or lease deadline in unix ms or "", field, value, ...}
-- ERRORS: EMQKIND
-- WRITES: nothing
-- COST: O(log n) a job
-- @include _row
-- @include _settle
-- @include _state
local refusal = settle_kinds(1, 1)
if refusal then return refusal end

local base, rows = KEYS[1], {}
for i, id in ipairs(ARGV) do
  local row = redis.pcall('HGETALL', base .. 'job:' .. id)
  if row.err or #row == 0 then
    rows[i] = {}
  else
    local state = state_of(base, id)
    local due = ''
    if state == 'scheduled' then due = redis.call('ZSCORE', base .. 'schedule', id) end
    if state == 'active' then due = redis.call('ZSCORE', base .. 'active', id) end
    table.insert(row, 1, due)
    table.insert(row, 1, state)
    rows[i] = row
  end
end
return rows
