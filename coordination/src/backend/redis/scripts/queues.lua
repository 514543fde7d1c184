-- record, age, kind, where to go on (empty: from the beginning): the cursor of the list of sessions, then, if some of those
-- that it led to are left, the cursor within the first of them, and their ids
if not tick() then return { 'stranger' } end
-- So many names are looked at in one call, or few more.
local left = 250
local before = 'entry:' .. ARGV[3] .. '/'
local ids = {}
for word in string.gmatch(ARGV[4], '%S+') do ids[#ids + 1] = word end
local sessions, within = table.remove(ids, 1) or '0', table.remove(ids, 1) or '0'
if #ids == 0 then
  local found = redis.call('ZSCAN', base .. 'sessions', sessions, 'COUNT', 50)
  sessions = found[1]
  for at = 1, #found[2], 2 do ids[#ids + 1] = found[2][at] end
end
local answer, seen = { 'ok', '0' }, {}
while left > 0 and #ids > 0 do
  -- Only of sessions that live: entries of others do not count.
  local expires = end_of(ids[1])
  local found = expires and expires > now and ask_session(ids[1], 'HSCAN', within, 'COUNT', left) or { '0', {} }
  for at = 1, #found[2], 2 do
    local field = found[2][at]
    local name = string.sub(field, 1, #before) == before
      and string.match(field, '^([^/]*)/[^/]*$', #before + 1)
    if name and not seen[name] then
      local queue = ARGV[3] .. '/' .. name
      -- If somebody has removed the queue's keys, the entry is gone and its session has not heard of it yet.
      if redis.call('EXISTS', base .. 'exclusive:' .. queue, base .. 'shared:' .. queue) > 0 then
        seen[name] = true
        local size = #answer
        answer[size + 1] = name
        -- The name in full stands with the entry.
        answer[size + 2] = string.sub(name, 1, 2) == 'h~' and found[2][at + 1] or ''
      end
    end
  end
  left, within = left - 1 - #found[2] / 2, found[1]
  if within == '0' then table.remove(ids, 1) end
end
if #ids > 0 then
  answer[2] = table.concat({ sessions, within, unpack(ids) }, ' ')
else
  answer[2] = sessions
end
return answer
