-- server, session, queue, id, mode, number, quarantine
if not tick() then return { 'stranger' } end
local session, queue, id, mode, seq, length = unpack(ARGV, 2, 7)
local found = redis.call('HMGET', base .. 'session:' .. session, 'expires', field_of(queue, id))
if not found[1] or tonumber(found[1]) <= now or not found[2] then return { 'gone' } end
local its = place_of(queue, id)
if its ~= tonumber(seq) then return { 'gone' } end
local left = quarantine(length)
if left then return { 'quarantine', left } end
return standing(queue, mode, its)
