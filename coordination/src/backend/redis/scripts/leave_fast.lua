-- The short way of leave.lua, before any function is made: the first of a queue without shares leaves.
--
-- Its number is known, so a call that entered it was answered: another one that is still under way came before
-- that on the same connection, or is on an older one, which that call has made stale. Nothing is to be kept here.
do
  local base, queue, id, seq = string.sub(KEYS[1], 1, -6), ARGV[4], ARGV[5], ARGV[6]
  local alone = base .. 'alone:' .. queue
  local only = seq ~= '' and redis.call('GET', alone)
  local is_there, channel, waiter = false, nil, nil
  if only then
    is_there = only == seq .. ' ' .. id
    if is_there then redis.call('DEL', alone) end
  elseif seq ~= '' and redis.call('EXISTS', base .. 'shared:' .. queue) == 0 then
    local set = base .. 'exclusive:' .. queue
    local first = redis.call('ZRANGE', set, 0, 1, 'WITHSCORES')
    waiter = first[4]
    if waiter and redis.call('HGET', KEYS[1], 'up:') == ARGV[1] then
      channel = redis.call('HGET', base .. 'session:' .. string.sub(first[3], 1, 16), 'channel')
    end
    is_there = first[1] == id and first[2] == seq and (not waiter or channel)
    if is_there then redis.call('ZREM', set, id) end
  end
  if is_there then
    redis.call('HDEL', base .. 'session:' .. string.sub(id, 1, 16), 'entry:' .. queue .. '/' .. id)
    if redis.call('HEXISTS', KEYS[1], 'heard') == 1 then
      redis.call('PUBLISH', base .. 'queue:' .. queue, 'gone ' .. seq)
    end
    if channel then
      redis.call('PUBLISH', base .. 'client:' .. channel, queue .. ' ' .. seq .. ' exclusive ' .. waiter .. ' free')
    end
    return { 'ok' }
  end
end
