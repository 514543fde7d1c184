-- The short way of enter.lua, before any function is made: nothing is odd, and no share is there.
--
-- Whoever comes to a free lock needs no time: its client knows when its own lease ends, and before us.
do
  local queue, id = ARGV[4], ARGV[5]
  local base, field = string.sub(KEYS[1], 1, -6), 'entry:' .. queue .. '/' .. id
  local set, shared = base .. 'exclusive:' .. queue, base .. 'shared:' .. queue
  local session, answer = base .. 'session:' .. ARGV[2], nil
  local clock = redis.call('HMGET', KEYS[1], 'up:' .. ARGV[8], 'last', 'heard')
  if ARGV[6] == 'exclusive' and clock[1] == ARGV[1]
    and redis.call('HGET', session, 'generation') == ARGV[3]
 then
    local number = clock[2] + 1
    if redis.call('EXISTS', set, shared) == 0 then
      answer = { 'ok', number }
    elseif redis.call('EXISTS', shared) == 0 and redis.call('HEXISTS', session, field) == 0 then
      local newest = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')
      local before = newest[1]
      local owner = base .. 'session:' .. string.sub(before, 1, 16)
      local lease = redis.call('HMGET', owner, 'expires', 'entry:' .. queue .. '/' .. before)
      local time = redis.call('TIME')
      local now = time[1] * 1000000 + time[2] + redis.call('HGET', KEYS[1], 'offset')
      local left = (tonumber(lease[1]) or 0) - now
      if left > 0 and lease[2] then answer = { 'ok', number, before, tonumber(newest[2]), left, lease[2] } end
    end
    if answer then
      local seq = string.format('%.0f', number)
      redis.call('ZADD', set, seq, id)
      redis.call('HSET', KEYS[1], 'last', seq)
      redis.call('HSET', session, field, ARGV[7])
      if clock[3] then redis.call('PUBLISH', base .. 'queue:' .. queue, 'entered') end
      return answer
    end
  end
end
