-- The short way of leave.lua, before any function is made: the first of a queue without shares leaves.
do
  local base = string.sub(KEYS[1], 1, -6)
  local queue, id, seq = ARGV[4], ARGV[5], ARGV[6]
  local session, set = base .. 'session:' .. ARGV[2], base .. 'exclusive:' .. queue
  if ARGV[2] ~= '' and seq ~= '' and redis.call('HGET', session, 'generation') == ARGV[3]
    and redis.call('EXISTS', base .. 'shared:' .. queue) == 0 then
    local first = redis.call('ZRANGE', set, 0, 1, 'WITHSCORES')
    local waiter, channel, its = first[3], nil, first[4]
    if waiter then
      local clock = redis.call('HMGET', KEYS[1], 'offset', 'forgets', 'started', 'longest')
      local time = redis.call('TIME')
      local owner = base .. 'session:' .. string.sub(waiter, 1, 16)
      local found = redis.call('HMGET', owner, 'channel', 'expires')
      local now = time[1] * 1000000 + time[2] + (clock[1] or 0)
      local is_quarantine = clock[2] ~= '0' and now < (clock[3] or 0) + (clock[4] or 0)
      if tonumber(found[2] or 0) > now and not is_quarantine then channel = found[1] end
    end
    if first[1] == id and (not waiter or channel) then
      redis.call('ZREM', set, id)
      redis.call('HDEL', session, 'entry:' .. queue .. '/' .. id)
      redis.call('PUBLISH', base .. 'queue:' .. queue, 'gone ' .. seq)
      if waiter then
        local words = { queue, seq, 'exclusive', its, 'free' }
        redis.call('PUBLISH', base .. 'client:' .. channel, table.concat(words, ' '))
      end
      return { 'ok' }
    end
  end
end
