-- Reads a queue: the time, the clock's id, the time until its first lease ends (-1: it has no entries), its value and its
-- entries. Arguments (ARGV): record and age, which `tick` reads; queue, and its two parts, kind and name.
use_memory()
if not tick() then return { 'stranger' } end
local queue, kind, name = unpack(ARGV, 3, 5)
sweep()
keep()
hear()
hold_queue(queue)
local answer = { 'ok', now, tonumber(epoch), -1, redis.call('HGET', base .. 'values:' .. kind, name) }
for _, mode in ipairs({ 'exclusive', 'shared' }) do
  local all = redis.call('ZRANGE', base .. mode .. ':' .. queue, 0, -1, 'WITHSCORES')
  for at = 1, #all, 2 do
    local id = all[at]
    local left, text = live(queue, id)
    -- An entry whose text cannot be read is left out, because the text says to which member it belongs.
    if left and text then
      if answer[4] < 0 or left < answer[4] then answer[4] = left end
      local size = #answer
      answer[size + 1], answer[size + 2] = id, tonumber(all[at + 1])
      answer[size + 3], answer[size + 4] = mode, text
    end
  end
end
return answer
