-- Lists the names of values of a kind, a page in each call. Arguments (ARGV): record and age, which are not used here; kind;
-- the cursor with which the page before ended (empty: from the beginning).
local values = base .. 'values:' .. ARGV[3]
local found = redis.call('HSCAN', values, ARGV[4] == '' and '0' or ARGV[4], 'COUNT', 250)
local answer = { 'ok', found[1] }
for at = 1, #found[2], 2 do
  local name = found[2][at]
  answer[#answer + 1] = name
  -- If the name is a hash (`h~`), the full name is in the text of the value, so that text is returned too.
  answer[#answer + 1] = string.sub(name, 1, 2) == 'h~' and found[2][at + 1] or ''
end
return answer
