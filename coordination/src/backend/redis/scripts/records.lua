-- Reads records beside a queue's value. Arguments (ARGV): record (here the namespace's record) and age, which `tick` reads;
-- queue; the names of the records that are wanted.
if not tick() then return { 'stranger' } end
local answer = { 'ok' }
for at = 4, #ARGV do
  answer[at - 2] = redis.call('HGET', base .. 'records:' .. ARGV[3], ARGV[at])
end
return answer
