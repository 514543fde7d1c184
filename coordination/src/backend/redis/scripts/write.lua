-- record, age, session, generation, queue, kind, name, the version that is expected (empty: none), text (empty:
-- remove it), whether the queue has to be empty, the write's id;
-- then of each record beside it its name and its text (empty: remove it)
if not tick() then return { 'stranger' } end
local session, generation, queue, kind, name, expected, text, if_empty, id = unpack(ARGV, 3, 11)
if text == '' then use_memory() end
local refused = admit(session, generation, 'member')
if refused then return { refused } end
local values = base .. 'values:' .. kind
local value = redis.call('HGET', values, name)
local version = value and string.match(value, '^(%d+) ') or ''
if version ~= expected then return { 'other', value } end
if if_empty == '1' and is_used(queue) then return { 'other', value } end
-- The call may come again, for some seconds, and what it made may be gone by then. Any other write that comes again
-- finds another version.
if expected == '' then
  if was_done('created:' .. id) then return { 'other', value } end
  note_done('created:' .. id)
end
if text == '' then
  redis.call('HDEL', values, name)
else
  version = digits(number())
  redis.call('HSET', values, name, version .. ' ' .. text)
end
local records = base .. 'records:' .. queue
for at = 12, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', records, ARGV[at])
  else
    redis.call('HSET', records, ARGV[at], ARGV[at + 1])
  end
end
publish(queue, 'written')
return { 'ok', tonumber(version) }
