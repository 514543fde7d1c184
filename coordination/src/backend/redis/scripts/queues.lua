-- Lists the names of queues of a kind that have entries, a page in each call. The entries are found by the sessions that own
-- them. Arguments (ARGV): record and age, which `tick` reads; kind; where the page before ended (empty: from the beginning).
-- That is the cursor in the list of sessions and, if some sessions of that step are not done yet, the cursor in the hash of the
-- first of them, and their ids.
if not tick() then return { 'stranger' } end
-- About how many fields of sessions are read in one call.
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
  -- Only living sessions are read, because the entries of others count as removed.
  local expires = end_of(ids[1])
  local found = expires and expires > now and ask_session(ids[1], 'HSCAN', within, 'COUNT', left) or { '0', {} }
  for at = 1, #found[2], 2 do
    local field = found[2][at]
    local name = string.sub(field, 1, #before) == before
      and string.match(field, '^([^/]*)/[^/]*$', #before + 1)
    if name and not seen[name] then
      local queue = ARGV[3] .. '/' .. name
      -- If the queue has no keys, because somebody has removed them, the entry is gone, although its session still has its
      -- text.
      if redis.call('EXISTS', base .. 'exclusive:' .. queue, base .. 'shared:' .. queue) > 0 then
        seen[name] = true
        local size = #answer
        answer[size + 1] = name
        -- If the name is a hash (`h~`), the full name is in the text of the entry, so that text is returned too.
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
