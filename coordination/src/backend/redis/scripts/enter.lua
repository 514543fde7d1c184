-- Enters an entry into a queue. Arguments (ARGV): record and age, which `tick` reads; session, generation, queue, the entry's
-- id, mode and text; quarantine: how long the reach has to be (empty: the record's `needed`).
if not tick() then return { 'stranger' } end
local session, generation, queue, id, mode, text, length = unpack(ARGV, 3, 9)
local field = field_of(queue, id)
local refused, there = admit(session, generation, field)
if refused then return { refused } end
local left = quarantine(length)
if left then return left end
redis.call('HSET', KEYS[1], 'up:' .. length, ARGV[1], 'reach', digits(reach))
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
hold(base .. mode .. ':' .. queue)
redis.call('HSET', base .. 'session:' .. session, field, text)
publish(queue, 'entered')
return standing(queue, mode, seq)
