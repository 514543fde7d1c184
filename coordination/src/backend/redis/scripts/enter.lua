-- server, session, generation, queue, id, mode, text, how long a server must have been up (negative: or the
-- longest lease)
if not tick() then return { 'stranger' } end
local session, generation, queue, id, mode, text, length = unpack(ARGV, 2, 8)
local field = field_of(queue, id)
local refused, there = admit(session, generation, field)
if refused then return { refused } end
local left = quarantine(length)
if left then return { 'quarantine', left } end
redis.call('HSET', KEYS[1], 'up:' .. length, ARGV[1])
if there then
  local seq = place_of(queue, id)
  if not seq then
    remove(queue, id)
    return { 'removed' }
  end
  return standing(queue, mode, seq)
end
local seq = number()
redis.call('ZADD', base .. mode .. ':' .. queue, digits(seq), id)
redis.call('HSET', base .. 'session:' .. session, field, text)
publish(queue, 'entered')
return standing(queue, mode, seq)
