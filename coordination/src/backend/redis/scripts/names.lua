-- record, age, kind, cursor
local values = base .. 'values:' .. ARGV[3]
local found = redis.call('HSCAN', values, ARGV[4] == '' and '0' or ARGV[4], 'COUNT', 250)
local answer = { 'ok', found[1] }
for at = 1, #found[2], 2 do
  local name = found[2][at]
  answer[#answer + 1] = name
  -- The name in full stands with the value.
  answer[#answer + 1] = string.sub(name, 1, 2) == 'h~' and found[2][at + 1] or ''
end
return answer
