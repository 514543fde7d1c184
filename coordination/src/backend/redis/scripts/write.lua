-- server, session, generation, queue, kind, name, the version that is expected (empty: none), text (empty:
-- remove it), whether the queue has to be empty
if not tick() then return { 'stranger' } end
local session, generation, queue, kind, name, expected, text, if_empty = unpack(ARGV, 2, 9)
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
if text == '' then
  redis.call('HDEL', values, name)
else
  version = digits(number())
  redis.call('HSET', values, name, version .. ' ' .. text)
end
publish(queue, 'written')
return { 'ok', tonumber(version) }
