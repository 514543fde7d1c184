-- Says which entry blocks an entry now. Arguments (ARGV): record and age, which `tick` reads; session, queue, the entry's id,
-- mode and number; quarantine: how long the reach has to be (empty: the record's `needed`).
use_memory()
if not tick() then return { 'stranger' } end
local session, queue, id, mode, seq, length = unpack(ARGV, 3, 8)
local found = redis.call('HMGET', base .. 'session:' .. session, 'expires', field_of(queue, id))
if not found[1] or tonumber(found[1]) <= now or not found[2] then return { 'gone' } end
local its = place_of(queue, id)
if its ~= tonumber(seq) then return { 'gone' } end
local left = quarantine(length)
if left then return left end
return standing(queue, mode, its)
