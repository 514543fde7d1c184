-- server, queue, id, number, the waiter's mode, whether he listens to the queue
if not tick() then return { 'stranger' } end
local queue, id, seq, mode, listens = unpack(ARGV, 2, 6)
if listens == '1' then hear() end
local its, is = place_of(queue, id)
if its ~= tonumber(seq) or (mode == 'shared' and is == 'shared') then return { 'gone' } end
local left = live(queue, id)
if left then return { 'ok', left } end
return { 'gone' }
