#!lua flags=allow-oom
-- Name the log that keeps the events of callers who name none, or none.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: the log's name, "" for none
-- RETURNS: "ok"
-- ERRORS: none
-- WRITES: meta.events_log
-- COST: O(1)
local base = KEYS[1]
if ARGV[1] == '' then
  redis.call('HDEL', base .. 'meta', 'events_log')
else
  redis.call('HSET', base .. 'meta', 'events_log', ARGV[1])
end
return 'ok'
