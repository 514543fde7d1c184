-- record, age, queue, names of records
if not tick() then return { 'stranger' } end
local answer = { 'ok' }
for at = 4, #ARGV do
  answer[at - 2] = redis.call('HGET', base .. 'records:' .. ARGV[3], ARGV[at])
end
return answer
