#!lua flags=allow-oom
-- Tell that a consumer is still at work on entries, so that nobody takes them over.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: log, group, consumer, then entry ids
-- RETURNS: per entry "ok", or "lost" when it is this consumer's no more, or in the log no more
-- ERRORS: none
-- WRITES: stream:<log>
-- COST: O(groups), and O(log n) an entry
-- @include _consumers
local base, group, consumer = KEYS[1], ARGV[2], ARGV[3]
local key = base .. 'stream:' .. ARGV[1]
local there, verdicts = consumers_group(key, group), {}
for i = 4, #ARGV do
  local id, verdict = ARGV[i], 'lost'
  -- XCLAIM alone would take it back from whoever has taken it over meanwhile.
  if there and consumers_deliveries(key, group, consumer, id) then
    local kept = redis.call('XCLAIM', key, group, consumer, 0, id, 'JUSTID')
    if #kept > 0 then verdict = 'ok' end
  end
  verdicts[#verdicts + 1] = verdict
end
return verdicts
