-- server, kind
if not tick() then return { 'stranger' } end
local before = 'entry:' .. ARGV[2] .. '/'
local answer, seen = { 'ok' }, {}
-- By the sessions that live: what others have left is none of a queue's.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. 'sessions', '(' .. digits(now), '+inf')) do
  local session = base .. 'session:' .. id
  for _, field in ipairs(redis.call('HKEYS', session)) do
    local name = string.sub(field, 1, #before) == before
      and string.match(field, '^([^/]*)/[^/]*$', #before + 1)
    if name and not seen[name] then
      local queue = ARGV[2] .. '/' .. name
      -- Where somebody has removed its keys, the entry is gone and its session has not heard of it yet.
      if redis.call('EXISTS', base .. 'exclusive:' .. queue, base .. 'shared:' .. queue) > 0 then
        seen[name] = true
        local size = #answer
        answer[size + 1] = name
        -- The name in full stands with the entry.
        answer[size + 2] = string.sub(name, 1, 2) == 'h~' and redis.call('HGET', session, field) or ''
      end
    end
  end
end
return answer
