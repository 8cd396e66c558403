#!lua flags=allow-oom
-- Announce what no transition of a job tells: a lost lease, a worker that starts or stops, what an app has to say.
-- KEYS[1] base   prefix  the queue base emq:{q}:
-- ARGV: caller, nonce, name, JOB id or "", more fields as JSON behind a comma each, or ""; last the caller's wishes (see _event)
-- RETURNS: how many heard it, as PUBLISH counts; 0 when it is not wanted, or was announced by an earlier try
-- ERRORS: none
-- WRITES: replies; announces
-- COST: O(1)
-- @include _row
-- @include _clock
-- @include _log
-- @include _wishes
-- @include _event
-- @include _mark
local call = event_begin()
local base, name, id, text = KEYS[1], ARGV[3], ARGV[4], ARGV[5]
if not event_wanted(call, name, event_teller(text)) then return 0 end
-- Sent again after its answer was lost: it was announced.
local answered, late = mark_read(base, ARGV[1], ARGV[2])
if answered or late then return answered and tonumber(answered[1]) or 0 end
local heard = event_say(base, call, name, id ~= '' and id or nil, text)
mark_write(base, ARGV[1], ARGV[2], tostring(type(heard) == 'number' and heard or 0))
return heard
