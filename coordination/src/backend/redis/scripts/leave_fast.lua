-- A short form of leave.lua for the usual case: the entry is the first of its queue, and the queue has no shared entries. It
-- stands before the functions of prelude.lua and returns without them, because defining them takes most of the time of a call.
-- In all other cases it changes nothing, and leave.lua follows. Arguments of commands are texts, which Redis takes faster than
-- numbers.
--
-- The client knows the entry's number, so a call of `enter` for this entry was answered. The client may have sent the same call
-- before. If it did so on the same connection, that earlier call was carried out before the answered one. If it did so on an
-- older connection, the answered call has raised the generation, and the earlier call will be refused as `stale`. So no `enter`
-- can arrive after this removal and have an effect.
--
-- It leaves out the following, compared with leave.lua:
--   Checking and noting on which connection the call comes: no call that enters this entry can take effect later, as said above.
--   If no other entry waits, the check whether the client knows the server's record, and whether the server is still its master:
--     the entry is removed under any record, and a replica that may not be written to refuses the removal by itself.
--   The check of the record's numbers, except for `began`, which is part of the record's name.
--   The check whether the session of the entry that is next is over: if it is, the entries behind it find that out themselves
--     when its lease ends.
--   Writing the time into the record: nothing is granted here that was not entered before, so no later time is needed.
do
  local call, base, queue, id, seq = redis.call, string.sub(KEYS[1], 1, -6), ARGV[5], ARGV[6], ARGV[7]
  local set = base .. 'exclusive:' .. queue
  local first = call('ZRANGE', set, '0', '1', 'WITHSCORES')
  if first[1] == id and first[2] == seq and call('EXISTS', base .. 'shared:' .. queue) == 0 then
    local waiter, heard, channel = first[4], nil, nil
    if waiter then
      local clock = call('HMGET', KEYS[1], 'heard', 'server', 'term')
      heard = clock[1]
      local began = tonumber(string.match(ARGV[1], ':(%d+)$')) or math.huge
      if clock[2] == ARGV[1] and clock[3] and tonumber(waiter) >= began then
        local info = call('INFO', 'replication')
        if string.find(info, 'role:master', 1, true) and string.find(info, 'master_replid:' .. clock[3] .. '\r', 1, true) then
          -- This fails if another program has put a key of its own in the session's place. Then `channel` is no text, and
          -- leave.lua follows.
          channel = redis.pcall('HGET', base .. 'session:' .. string.sub(first[3], 1, 16), 'channel')
        end
      end
    else
      heard = call('HGET', KEYS[1], 'heard')
    end
    if type(channel) == 'string' or not waiter then
      if waiter then call('ZREM', set, id) else call('DEL', set) end
      -- If another program has put a key of its own in the session's place, this fails, and whoever waits is told all the same.
      redis.pcall('HDEL', base .. 'session:' .. string.sub(id, 1, 16), 'entry:' .. queue .. '/' .. id)
      if heard then call('PUBLISH', base .. 'queue:' .. queue, 'gone ' .. seq) end
      if channel then
        local words = { queue, seq, 'exclusive', waiter, 'free', ARGV[1], first[3] }
        call('PUBLISH', base .. 'client:' .. channel, table.concat(words, ' '))
      end
      return 'ok'
    end
  end
end
