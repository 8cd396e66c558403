-- The last answer of each caller, kept so that a call sent again after its reply was lost gets that answer, and not
-- another turn. A caller has one call on its way at a time, so one field each is enough. A nonce is "<call>.<try>".

local function mark_write(base, caller, nonce, answer)
  local key, mark = base .. 'replies', nonce .. ' ' .. answer
  if redis.call('HSET', key, caller, mark) == 1 then
    -- A new caller. Those that are gone for good leave with the key, or when there are too many of them.
    if redis.call('HLEN', key) > 10000 then
      redis.call('DEL', key)
      redis.call('HSET', key, caller, mark)
    end
    redis.call('PEXPIRE', key, 3600000)
  end
end

-- The words of the answer to this call, nil when it was not answered; and whether a later try or call has overtaken
-- this one, which then has nobody left to read its answer.
local function mark_read(base, caller, nonce)
  local mark = redis.call('HGET', base .. 'replies', caller)
  if not mark then return nil, false end
  local last_call, last_try = string.match(mark, '^(%d+)%.(%d+)')
  local call, try = string.match(nonce, '^(%d+)%.(%d+)$')
  if not last_call or not call then return nil, false end
  last_call, call = tonumber(last_call), tonumber(call)
  if last_call < call then return nil, false end
  if last_call > call or tonumber(last_try) > tonumber(try) then return nil, true end
  local words = {}
  -- Behind the nonce, of which another try may have been longer.
  for word in string.gmatch(string.match(mark, '^[%d.]+(.*)$'), '%S+') do words[#words + 1] = word end
  return words, false
end
