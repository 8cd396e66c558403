#!lua
-- Note how far a job is, and tell those who listen, whether or not the caller wishes for events.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, id, progress; last the caller's wishes (see _event), which say whether a log keeps it too
-- RETURNS: "ok" or "gone"
-- ERRORS: EMQKIND
-- WRITES: replies; row.progress; announces
-- COST: O(1)
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _settle
-- @include _mark
local call = event_begin()
local refusal = settle_kinds(3, 2)
if refusal then return refusal end

local base, id, progress = KEYS[1], ARGV[3], ARGV[4]
local row = base .. 'job:' .. id
if redis.call('EXISTS', row) == 0 then return 'gone' end
-- Sent again after its answer was lost: those who listen were told.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if answered or late then return 'ok' end
redis.call('HSET', row, 'progress', progress)
mark_write(base, ARGV[1], ARGV[2], 'ok')
local fields = row_read(row, 'payload', 'attempts')
local actor = event_actor(fields[1] or '')
if not event_wanted(call, 'progress', actor) then call.log = false end
event_say(base, call, 'progress', id, (actor and ',"actor":' .. event_quote(actor) or '') .. ',"attempt":"' ..
  string.format('%.0f', row_count(fields[2])) .. '","progress":' .. event_quote(progress))
return 'ok'
