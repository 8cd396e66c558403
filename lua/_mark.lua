-- The last answer of each caller, kept so that a call sent again after its reply was lost gets that answer, and not
-- another turn. A caller has one call on its way at a time, so one field each is enough.

local function mark_write(base, caller, nonce, answer)
  if redis.call('HSET', base .. 'replies', caller, nonce .. ' ' .. answer) == 1 then
    -- A new caller. Those that are gone for good leave with the key, or when there are too many of them.
    if redis.call('HLEN', base .. 'replies') > 1000 then redis.call('DEL', base .. 'replies') end
    redis.call('PEXPIRE', base .. 'replies', 3600000)
  end
end

-- The words of the answer to call `nonce`, nil when that call was not answered.
local function mark_read(base, caller, nonce)
  local mark = redis.call('HGET', base .. 'replies', caller)
  if not mark or string.match(mark, '^%S+') ~= nonce then return nil end
  local words = {}
  for word in string.gmatch(string.sub(mark, #nonce + 1), '%S+') do words[#words + 1] = word end
  return words
end
