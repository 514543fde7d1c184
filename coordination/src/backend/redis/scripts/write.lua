-- server, session, generation, queue, kind, name, the version that is expected (empty: none), text (empty:
-- remove it), whether the queue has to be empty, the write's id
if not tick() then return { 'stranger' } end
local session, generation, queue, kind, name, expected, text, if_empty, id = unpack(ARGV, 2, 10)
local refused = admit(session, generation, 'member')
if refused then return { refused } end
local values = base .. 'values:' .. kind
local value = redis.call('HGET', values, name)
local version = value and string.match(value, '^(%d+) ') or ''
if version ~= expected then return { 'other', value } end
if if_empty == '1' then
  sweep()
  if redis.call('EXISTS', base .. 'exclusive:' .. queue, base .. 'shared:' .. queue) > 0 then
    return { 'other', value }
  end
end
-- The call may come again, for some seconds, and what it made may be gone by then. Any other write that comes again
-- finds another version.
if expected == '' and not redis.call('SET', base .. 'created:' .. id, '', 'NX', 'PX', 60000) then
  return { 'other', value }
end
if text == '' then
  redis.call('HDEL', values, name)
else
  version = digits(number())
  redis.call('HSET', values, name, version .. ' ' .. text)
end
publish(queue, 'written')
return { 'ok', tonumber(version) }
