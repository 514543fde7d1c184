-- server, how long it has been up, whether it forgets when it restarts
local time = redis.call('TIME')
local found = redis.call('HMGET', KEYS[1], 'server', 'offset', 'last', 'epoch', 'longest')
if found[1] == ARGV[1] then return { 'ok' } end
local raw = time[1] * 1000000 + time[2]
local offset, before = tonumber(found[2]) or 0, tonumber(found[3]) or 0
if raw + offset < before then offset = before - raw end
redis.call('HSET', KEYS[1],
  'server', ARGV[1],
  'offset', digits(offset),
  'last', digits(raw + offset),
  'forgets', ARGV[3],
  'started', digits(raw + offset - ARGV[2]),
  'longest', found[5] or '0',
  'epoch', found[4] or digits(raw))
return { 'ok' }
