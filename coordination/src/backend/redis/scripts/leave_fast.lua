-- The short way of leave.lua, before any function is made: the first of a queue without shares leaves.
--
-- Its number is known, so a call that entered it was answered: another one that is still under way came before
-- that on the same connection, or is on an older one, which that call has made stale.
--
-- Left out:
--   on which connection the call comes, and to note that: nothing that may come late has an effect, as said above
--   if nobody waits, whether the record is the one that the client knows: the entry is removed whatever record it is
--   the record's numbers, but for when it began, which is part of its name
--   whether the first who waits is alive: if not, those behind him notice that themselves when his lease is over
--   to keep the time: nothing is granted here that was not entered before
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
      -- Somebody may have put another key there.
      channel = redis.pcall('HGET', base .. 'session:' .. string.sub(first[3], 1, 16), 'channel')
    end
    if type(channel) == 'string' or not waiter then
      redis.call('ZREM', set, id)
      redis.call('HDEL', base .. 'session:' .. string.sub(id, 1, 16), 'entry:' .. queue .. '/' .. id)
      if clock[1] then redis.call('PUBLISH', base .. 'queue:' .. queue, 'gone ' .. seq) end
      if channel then
        redis.call('PUBLISH', base .. 'client:' .. channel, queue .. ' ' .. seq .. ' exclusive ' .. waiter .. ' free')
      end
      return { 'ok' }
    end
  end
end
