-- A short form of enter.lua for the usual case, a queue without shared entries. It stands before the functions of prelude.lua
-- and returns without them, because defining them takes most of the time of a call. In all other cases it changes nothing, and
-- enter.lua follows. It too checks each time whether the server has been the master since it was greeted, as `is_master_since`
-- in prelude.lua does. If nothing blocks the entry, it returns just the entry's number.
--
-- Times stay texts here, because Lua takes longer to make a number of a text, and most of all a text of a number, than Redis takes
-- for some commands. All times from 2001 to 2286 have sixteen digits, so that they can be compared as texts. For the same reason
-- arguments of commands are texts.
--
-- It leaves out the following, compared with enter.lua:
--   The check whether the session is over: its client knows that itself, and earlier than the server.
--   If the queue has no keys, the check whether the session has the entry already: it has not, unless somebody has removed the
--     queue's keys by hand. In that case the entry is entered again here, whereas enter.lua returns `removed`.
--   The check of those numbers of the record that are not used here, and of the form of the others: see `is_sound`.
--   Writing the reach into the record: heartbeats do that.
--   Working out when the queue's key expires from the longest lease. The key expires after two days, which is later, as no lease is
--     longer than a day. Only the first entry sets that; the clients with entries set it with each heartbeat.
do
  local call, queue, id = redis.call, ARGV[5], ARGV[6]
  local base = string.sub(KEYS[1], 1, -6)
  local session = base .. 'session:' .. ARGV[3]
  local clock = call('HMGET', KEYS[1], 'up:' .. ARGV[9], 'term', 'last', 'offset', 'heard')
  local last, newest = clock[3], string.sub(ARGV[2], string.find(ARGV[2], ' ', 1, true) + 1)
  if ARGV[7] == 'exclusive' and clock[1] == ARGV[1] and clock[2] and last and #last == 16 and not string.find(last, '%D')
    -- The last time in the record is earlier than one that the client knows if somebody has brought back older data.
    and (#newest < 16 or #newest == 16 and last >= newest)
    and call('HGET', session, 'generation') == ARGV[4]
  then
    local info = call('INFO', 'replication')
    local time = call('TIME')
    local number = time[1] .. string.sub('00000' .. time[2], -6)
    -- A negative number is not compared: in some languages the server compares texts as if they had no sign.
    if clock[4] ~= '0' then number = string.format('%.0f', math.max(0, number + (tonumber(clock[4]) or math.huge))) end
    if string.find(info, 'role:master', 1, true) and string.find(info, 'master_replid:' .. clock[2] .. '\r', 1, true)
      -- If the last number is ahead of the time, enter.lua sets the clock to it. The other limit is 2^52, see `most` in prelude.lua.
      and #number == 16 and number > last and number <= '4503599627370496'
    then
      local set, shared = base .. 'exclusive:' .. queue, base .. 'shared:' .. queue
      local field, answer, is_first = 'entry:' .. queue .. '/' .. id, nil, false
      if call('EXISTS', set, shared) == 0 then
        answer, is_first = tonumber(number), true
      elseif call('EXISTS', shared) == 0 and call('HEXISTS', session, field) == 0 then
        local found = call('ZREVRANGE', set, '0', '0', 'WITHSCORES')
        local before = found[1]
        local owner = base .. 'session:' .. string.sub(before, 1, 16)
        -- This fails if another program has put a key of its own in the session's place. Then `left` is negative, and
        -- enter.lua follows.
        local lease = redis.pcall('HMGET', owner, 'expires', 'entry:' .. queue .. '/' .. before)
        local left = (tonumber(lease[1]) or 0) - tonumber(number)
        if left > 0 and lease[2] then answer = { 'ok', tonumber(number), before, tonumber(found[2]), left, lease[2] } end
      end
      if answer then
        call('ZADD', set, number, id)
        if is_first then call('PEXPIRE', set, '172800000') end
        call('HSET', KEYS[1], 'last', number)
        call('HSET', session, field, ARGV[8])
        if clock[5] then call('PUBLISH', base .. 'queue:' .. queue, 'entered') end
        return answer
      end
    end
  end
end
