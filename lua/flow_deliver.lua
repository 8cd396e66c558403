#!lua flags=allow-oom
-- Tell parents of this queue what became of their children in other queues; a second delivery changes nothing.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: per fact parent id, kind ("done" | "fp" | "id"), child id, result or error; last the caller's wishes (see _event)
-- RETURNS: how many parents were there to be told
-- ERRORS: EMQKIND
-- WRITES: row:processed, row:failed, row:unsuccessful, row:dependencies; the parent's row; pending | g:<group>:pending, ring | dead, metrics:failed; wake; flow:outbox; announces
-- COST: O(log n) a fact
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _settle
-- @include _wake
-- @include _lane
-- @include _unique
-- @include _place
-- @include _flow
local call = event_begin()
local refusal = settle_kinds(1, 4)
if refusal then return refusal end

local base, told = KEYS[1], 0
for i = 1, #ARGV, 4 do
  local parent, kind, child, value = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if redis.call('EXISTS', base .. 'job:' .. parent) == 1 then told = told + 1 end
  if kind == 'done' then
    flow_completed(base, child, parent, nil, value)
  else
    flow_died(base, child, parent, nil, kind, value, call)
  end
end
return told
