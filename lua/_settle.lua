-- Fencing and kind checks shared by every script that takes (job id, token) pairs.

-- Refuse a batch that names anything but JOB ids, before any write. `step` is the width of one entry in ARGV.
local function settle_kinds(first, step)
  for i = first, #ARGV, step do
    if string.sub(ARGV[i], 1, 3) ~= 'JOB' or #ARGV[i] ~= 14 then
      return redis.error_reply('EMQKIND ' .. ARGV[i] .. ' is not a JOB id')
    end
  end
end

-- The verdict on a token: nil when it is the row's own.
local function settle_verdict(attempts, token)
  if not attempts then return 'gone' end
  if attempts ~= token then return 'stale' end
end
