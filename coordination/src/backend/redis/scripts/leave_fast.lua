-- A short form of leave.lua for the usual case: the entry is the first of its queue, and the queue has no shared entries. It
-- stands before the functions of prelude.lua and returns without them, because defining them takes most of the time of a call.
-- In all other cases it changes nothing, and leave.lua follows.
--
-- The client knows the entry's number, so a call of `enter` for this entry was answered. The client may have sent the same call
-- before. If it did so on the same connection, that earlier call was carried out before the answered one. If it did so on an
-- older connection, the answered call has raised the generation, and the earlier call will be refused as `stale`. So no `enter`
-- can arrive after this removal and have an effect.
--
-- It leaves out the following, compared with leave.lua:
--   Checking and noting on which connection the call comes: no call that enters this entry can take effect later, as said above.
--   If no other entry waits, the check whether the client knows the server's record: the entry is removed under any record.
--   The check of the record's numbers, except for `began`, which is part of the record's name.
--   The check whether the session of the entry that is next is over: if it is, the entries behind it find that out themselves
--     when its lease ends.
--   Writing the time into the record: nothing is granted here that was not entered before, so no later time is needed.
do
  local base, queue, id, seq = string.sub(KEYS[1], 1, -6), ARGV[5], ARGV[6], ARGV[7]
  local set = base .. 'exclusive:' .. queue
  local first = redis.call('ZRANGE', set, 0, 1, 'WITHSCORES')
  if first[1] == id and first[2] == seq and redis.call('EXISTS', base .. 'shared:' .. queue) == 0 then
    local clock, waiter, channel = redis.call('HMGET', KEYS[1], 'heard', 'server', 'term'), first[4], nil
    local info = redis.call('INFO', 'replication')
    local began = tonumber(string.match(ARGV[1], '%d+$')) or math.huge
    if waiter and clock[2] == ARGV[1] and clock[3] and tonumber(waiter) >= began
      and string.find(info, 'role:master', 1, true) and string.find(info, 'master_replid:' .. clock[3] .. '\r', 1, true)
    then
      -- This fails if another program has put a key of its own in the session's place. Then `channel` is no text, and
      -- leave.lua follows.
      channel = redis.pcall('HGET', base .. 'session:' .. string.sub(first[3], 1, 16), 'channel')
    end
    if type(channel) == 'string' or not waiter then
      redis.call('ZREM', set, id)
      redis.call('HDEL', base .. 'session:' .. string.sub(id, 1, 16), 'entry:' .. queue .. '/' .. id)
      if clock[1] then redis.call('PUBLISH', base .. 'queue:' .. queue, 'gone ' .. seq) end
      if channel then
        local words = { queue, seq, 'exclusive', waiter, 'free', ARGV[1], first[3] }
        redis.call('PUBLISH', base .. 'client:' .. channel, table.concat(words, ' '))
      end
      return { 'ok' }
    end
  end
end
