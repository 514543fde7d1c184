-- server, kind
local values = base .. 'values:' .. ARGV[2]
local names = { 'ok' }
for _, name in ipairs(redis.call('HKEYS', values)) do
  names[#names + 1] = name
  -- The name in full stands with the value.
  names[#names + 1] = string.sub(name, 1, 2) == 'h~' and redis.call('HGET', values, name) or ''
end
return names
