-- record, age, queue, id, number, the waiter's mode, whether he listens to the queue
use_memory()
if not tick() then return { 'stranger' } end
local queue, id, seq, mode, listens = unpack(ARGV, 3, 7)
if listens == '1' then hear() end
hold_queue(queue)
local its, is = place_of(queue, id)
if its ~= tonumber(seq) or (mode == 'shared' and is == 'shared') then return { 'gone' } end
local left = live(queue, id)
if left then return { 'ok', left } end
return { 'gone' }
