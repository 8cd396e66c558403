#!lua flags=no-writes
-- Measure a queue: its counts, and what is behind its time.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: none
-- RETURNS: the counts as in queue_counts, then due but not promoted, lanes that hold a job, the server's clock in unix ms, the oldest dead id or ""
-- ERRORS: none
-- WRITES: nothing
-- COST: O(lanes)
-- @include _row
-- @include _clock
-- @include _groups
-- @include _counts
local base, now = KEYS[1], clock_ms()
local answer, lanes = counts_of(base)
answer[#answer + 1] = redis.call('ZCOUNT', base .. 'schedule', '-inf', now)
answer[#answer + 1] = lanes
answer[#answer + 1] = now
answer[#answer + 1] = redis.call('ZRANGE', base .. 'dead', 0, 0)[1] or ''
return answer
