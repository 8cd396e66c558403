-- The end of many jobs at once: of those that were active, in no lane, and are done.

-- Take jobs out of active and delete their rows with everything beside them; results stay, as in forget_row.
local function finish_rows(base, ids)
  for first = 1, #ids, 500 do
    local last = math.min(first + 499, #ids)
    redis.call('ZREM', base .. 'active', unpack(ids, first, last))
    local rows, beside = {}, {}
    for i = first, last do
      local row = base .. 'job:' .. ids[i]
      rows[#rows + 1] = row
      beside[#beside + 1] = row .. ':lock'
      beside[#beside + 1] = row .. ':logs'
      -- Only a flow parent has the others, and it has this one.
      beside[#beside + 1] = row .. ':dependencies'
    end
    -- Hardly any job has something beside its row; to look costs less than to delete what is not there, which is
    -- written to the append-only file and sent to replicas too.
    local key = beside[1]
    if redis.call('EXISTS', key, unpack(beside, 2)) > 0 then
      for _, row in ipairs(rows) do
        redis.call('DEL', row .. ':lock', row .. ':logs', row .. ':dependencies', row .. ':processed', row .. ':failed',
          row .. ':unsuccessful')
      end
    end
    key = rows[1]
    redis.call('DEL', key, unpack(rows, 2))
  end
end
