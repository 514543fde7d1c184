-- Writes a queue's value by compare-and-set, and records beside it. Arguments (ARGV): record and age, which `tick` reads;
-- session, generation, queue, and its two parts, kind and name; the version that the value has to have (empty: there has to be
-- no value); the new text (empty: remove the value); `1` if the queue has to have no entries; the write's id; `1` if it is to be
-- refused while the memory is full; then name and text of each record beside the value (empty text: remove the record).
if not tick() then return { 'stranger' } end
local session, generation, queue, kind, name, expected, text, if_empty, id, needs_room =
  unpack(ARGV, 3, 12)
if text == '' or needs_room == '' then use_memory() end
local refused = admit(session, generation, 'member')
if refused then return { refused } end
local values = base .. 'values:' .. kind
local value = redis.call('HGET', values, name)
local version = value and string.match(value, '^(%d+) ') or ''
if version ~= expected then return { 'other', value } end
if if_empty == '1' and is_used(queue) then return { 'other', value } end
-- If the client repeats this write, or it arrives twice, the second must not be carried out. A write that expects a version
-- finds another version then. But a write that creates a value would be carried out again if the value was removed in between,
-- so its id is noted.
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
for at = 13, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', records, ARGV[at])
  else
    redis.call('HSET', records, ARGV[at], ARGV[at + 1])
  end
end
publish(queue, 'written')
return { 'ok', tonumber(version) }
