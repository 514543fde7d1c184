-- record, age, kind, cursor
if not tick() then return { 'stranger' } end
local before = 'entry:' .. ARGV[3] .. '/'
-- By the sessions that live: what others have left is none of a queue's.
local found = redis.call('ZSCAN', base .. 'sessions', ARGV[4] == '' and '0' or ARGV[4], 'COUNT', 50)
local answer, seen = { 'ok', found[1] }, {}
for at = 1, #found[2], 2 do
  local session = base .. 'session:' .. found[2][at]
  local lives = tonumber(found[2][at + 1]) > now
  for _, field in ipairs(lives and ask(session, 'HKEYS') or {}) do
    local name = string.sub(field, 1, #before) == before
      and string.match(field, '^([^/]*)/[^/]*$', #before + 1)
    if name and not seen[name] then
      local queue = ARGV[3] .. '/' .. name
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
