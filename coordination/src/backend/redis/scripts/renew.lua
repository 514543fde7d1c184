-- server, session, generation, then queue and id of each entry that is held
if not tick() then return { 'stranger' } end
local id = ARGV[2]
local refused, lease = admit(id, ARGV[3], 'lease')
if refused then return { refused } end
local expires = digits(now + lease)
redis.call('HSET', base .. 'session:' .. id, 'expires', expires)
redis.call('ZADD', base .. 'sessions', expires, id)
keep()
if heard and heard < now then redis.call('HDEL', KEYS[1], 'heard') end
sweep()
local gone = { 'ok' }
for at = 4, #ARGV, 2 do
  local queue, entry = ARGV[at], ARGV[at + 1]
  if not place_of(queue, entry)
    or redis.call('HEXISTS', session_of(entry), field_of(queue, entry)) == 0 then
    remove(queue, entry)
    gone[#gone + 1] = entry
  end
end
return gone
