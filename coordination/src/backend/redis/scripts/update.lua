-- Changes an entry's text, and perhaps its mode from exclusive to shared. Arguments (ARGV): record and age, which `tick` reads;
-- session, generation, queue, the entry's id; its new mode and text; its number; quarantine: how long the reach has to be
-- (empty: the record's `needed`).
use_memory()
if not tick() then return { 'stranger' } end
local session, generation, queue, id, mode, text, seq, length = unpack(ARGV, 3, 10)
local field = field_of(queue, id)
local refused, there = admit(session, generation, field)
if refused then return { refused } end
local left = quarantine(length)
if left then return left end
local its, was = place_of(queue, id)
if not there or its ~= tonumber(seq) then return { 'gone' } end
if was == 'shared' and mode == 'exclusive' then return { 'exclusive' } end
redis.call('HSET', base .. 'session:' .. session, field, text)
if was == mode then
  publish(queue, 'updated')
  return { 'ok' }
end
redis.call('ZREM', base .. 'exclusive:' .. queue, id)
redis.call('ZADD', base .. 'shared:' .. queue, digits(its), id)
hold(base .. 'shared:' .. queue)
publish(queue, 'shared ' .. digits(its))
pass(queue, its, true, false)
return { 'ok' }
