-- A short form of enter.lua for the usual case, a queue without shared entries. It stands before the functions of prelude.lua
-- and returns without them, because defining them takes most of the time of a call. In all other cases it changes nothing, and
-- enter.lua follows. It too checks each time whether the server has been the master since it was greeted, as `is_master_since`
-- in prelude.lua does.
--
-- It leaves out the following, compared with enter.lua:
--   The check whether the session is over: its client knows that itself, and earlier than the server.
--   If the queue has no keys, the check whether the session has the entry already: it has not, unless somebody has removed the
--     queue's keys by hand. In that case the entry is entered again here, whereas enter.lua returns `removed`.
--   The check of those numbers of the record that are not used here, and of the form of the others: see `is_sound`.
--   If the last number is ahead of the time, setting the clock to it: the next number is larger without that.
--   Writing the reach into the record: heartbeats do that.
--   Setting when the queue's key expires, unless this entry is the first: the client with the first entry has done it, and does
--     it again with each heartbeat.
do
  local queue, id = ARGV[5], ARGV[6]
  local base, field = string.sub(KEYS[1], 1, -6), 'entry:' .. queue .. '/' .. id
  local set, shared = base .. 'exclusive:' .. queue, base .. 'shared:' .. queue
  local session, answer = base .. 'session:' .. ARGV[3], nil
  local clock = redis.call('HMGET', KEYS[1], 'up:' .. ARGV[9], 'last', 'heard', 'longest', 'term', 'offset')
  local last, longest, offset = tonumber(clock[2]), tonumber(clock[4]), tonumber(clock[6])
  local info = redis.call('INFO', 'replication')
  if ARGV[7] == 'exclusive' and clock[1] == ARGV[1] and clock[5] and last and longest and offset
    -- These are the largest numbers that a sound record can have, see `most` in prelude.lua.
    and last <= 2^52 and longest >= 0 and longest <= 86400000000 and math.abs(offset) <= 2^52
    -- The last time in the record is earlier than one that the client knows if somebody has brought back older data.
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
      -- This fails if another program has put a key of its own in the session's place. Then `left` is negative, and
      -- enter.lua follows.
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
