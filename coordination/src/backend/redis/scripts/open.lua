-- server, session, generation, member, channel, lease, the client's session before
if not tick() then return { 'stranger' } end
sweep()
local id, generation, member, channel, lease, previous = unpack(ARGV, 2, 7)
if redis.call('EXISTS', base .. 'closed:' .. id) == 1 then return { 'lost' } end
if previous ~= '' and previous ~= id then finish(previous) end
local owner = redis.call('GET', base .. 'member:' .. member)
if owner and owner ~= id then
  if redis.call('EXISTS', base .. 'session:' .. owner) == 1 then return { 'taken' } end
end
local expires = digits(now + lease)
redis.call('HSET', base .. 'session:' .. id, 'member', member, 'channel', channel, 'lease', lease,
  'expires', expires, 'generation', generation)
redis.call('ZADD', base .. 'sessions', expires, id)
redis.call('SET', base .. 'member:' .. member, id)
if tonumber(lease) > longest then
  redis.call('HSET', KEYS[1], 'longest', lease)
  -- A server is to be up for longer from now on.
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 3) == 'up:' then redis.call('HDEL', KEYS[1], field) end
  end
end
keep()
return { 'ok' }
