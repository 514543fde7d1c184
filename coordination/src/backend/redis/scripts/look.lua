-- Says for how long the lease of an entry still lasts that somebody waits for; `gone`: it does not block the waiter. Arguments
-- (ARGV): record and age, which `tick` reads; queue, the entry's id and number; the mode of the entry that waits; `1` if the
-- client listens to the queue's channel.
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
