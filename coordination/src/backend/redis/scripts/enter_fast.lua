-- The short way of enter.lua, before any function is made: nothing is odd, and no share is there.
do
  local base = string.sub(KEYS[1], 1, -6)
  local session, queue, id = base .. 'session:' .. ARGV[2], ARGV[4], ARGV[5]
  local field, set = 'entry:' .. queue .. '/' .. id, base .. 'exclusive:' .. queue
  local clock = redis.call('HMGET', KEYS[1], 'server', 'offset', 'last', 'started', 'longest')
  local found = redis.call('HMGET', session, 'expires', 'generation', field)
  if ARGV[6] == 'exclusive' and clock[1] == ARGV[1] and found[2] == ARGV[3] and not found[3]
    and redis.call('EXISTS', base .. 'shared:' .. queue) == 0 then
    local time, length = redis.call('TIME'), tonumber(ARGV[8])
    local now = time[1] * 1000000 + time[2] + clock[2]
    if length < 0 then length = math.max(-length, tonumber(clock[5])) end
    if now > tonumber(clock[3]) and now < tonumber(found[1]) and now >= clock[4] + length then
      local newest = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')
      local before, its, left, text = newest[1], tonumber(newest[2])
      if before then
        local owner = base .. 'session:' .. string.sub(before, 1, 16)
        local lease = redis.call('HMGET', owner, 'expires', 'entry:' .. queue .. '/' .. before)
        left, text = (tonumber(lease[1]) or 0) - now, lease[2]
      end
      if not before or (left > 0 and text) then
        local seq = string.format('%.0f', now)
        redis.call('HSET', KEYS[1], 'last', seq)
        redis.call('ZADD', set, seq, id)
        redis.call('HSET', session, field, ARGV[7])
        redis.call('PUBLISH', base .. 'queue:' .. queue, 'entered')
        return { 'ok', now, before, its, left, text }
      end
    end
  end
end
