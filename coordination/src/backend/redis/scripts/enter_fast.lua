-- The short way of enter.lua, before any function is made, for the usual case without shared entries; all else goes the long
-- way. That the server has been the master ever since it was greeted is looked at each time: see `is_master_since`.
--
-- Left out:
--   whether the session is over: its client knows that, and before us
--   whether it has the entry already, where the queue has no keys: it has not, or somebody has removed them by hand, and the
--     entry is made anew, where the long way says that it was removed
--   the record's numbers that are not used here, and whether the others are written in digits: see `is_sound`
--   where the last number is ahead of the time, to set the clock to it: the next number is larger all the same
--   to note how far the record reaches back: heartbeats do that
--   to say how long the queue's key is to stay: whoever came first has said that, and says it again with each heartbeat
do
  local queue, id = ARGV[5], ARGV[6]
  local base, field = string.sub(KEYS[1], 1, -6), 'entry:' .. queue .. '/' .. id
  local set, shared = base .. 'exclusive:' .. queue, base .. 'shared:' .. queue
  local session, answer = base .. 'session:' .. ARGV[3], nil
  local clock = redis.call('HMGET', KEYS[1], 'up:' .. ARGV[9], 'last', 'heard', 'longest', 'term', 'offset')
  local last, longest, offset = tonumber(clock[2]), tonumber(clock[4]), tonumber(clock[6])
  local info = redis.call('INFO', 'replication')
  if ARGV[7] == 'exclusive' and clock[1] == ARGV[1] and clock[5] and last and longest and offset
    -- No number of a sound record is beyond these.
    and last <= 2^52 and longest >= 0 and longest <= 86400000000 and math.abs(offset) <= 2^52
    -- Smaller if somebody has brought back older data.
    and last >= tonumber(string.match(ARGV[2], '%d+$'))
    and redis.call('HGET', session, 'generation') == ARGV[4]
    and string.find(info, 'role:master', 1, true) and string.find(info, 'master_replid:' .. clock[5] .. '\r', 1, true)
  then
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2] + offset
    local number, is_first = math.max(last + 1, now), false
    if redis.call('EXISTS', set, shared) == 0 then
      answer, is_first = { 'ok', number }, true
    elseif redis.call('EXISTS', shared) == 0 and redis.call('HEXISTS', session, field) == 0 then
      local newest = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')
      local before = newest[1]
      local owner = base .. 'session:' .. string.sub(before, 1, 16)
      -- Somebody may have put another key there.
      local lease = redis.pcall('HMGET', owner, 'expires', 'entry:' .. queue .. '/' .. before)
      local left = (tonumber(lease[1]) or 0) - now
      if left > 0 and lease[2] then answer = { 'ok', number, before, tonumber(newest[2]), left, lease[2] } end
    end
    if answer then
      local seq = string.format('%.0f', number)
      redis.call('ZADD', set, seq, id)
      if is_first then redis.call('PEXPIRE', set, string.format('%.0f', 86400000 + longest / 1000)) end
      redis.call('HSET', KEYS[1], 'last', seq)
      redis.call('HSET', session, field, ARGV[8])
      if clock[3] then redis.call('PUBLISH', base .. 'queue:' .. queue, 'entered') end
      return answer
    end
  end
end
