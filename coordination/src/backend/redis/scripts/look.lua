-- server, queue, id, number, the waiter's mode, whether he listens to the queue
if not tick() then return { 'stranger' } end
local queue, id, seq, mode, listens = unpack(ARGV, 2, 6)
if listens == '1' then hear() end
local its, is = place_of(queue, id)
if its ~= tonumber(seq) or (mode == 'shared' and is == 'shared') then return { 'gone' } end
local found = redis.call('HMGET', session_of(id), 'expires', field_of(queue, id))
local expires = tonumber(found[1])
if expires and expires > now and found[2] then return { 'ok', expires - now } end
if expires and expires <= now then finish(string.sub(id, 1, 16)) end
remove(queue, id)
return { 'gone' }
