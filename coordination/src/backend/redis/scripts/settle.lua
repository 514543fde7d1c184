-- record, age, session, generation, then the ids of all entries that its client knows of
-- A server that came back with older data, or took over, may have entries that were left long ago.
use_memory()
if not tick() then return { 'stranger' } end
local refused = admit(ARGV[3], ARGV[4], 'lease')
if refused then return { refused } end
local known = {}
for at = 5, #ARGV do known[ARGV[at]] = true end
for _, field in ipairs(redis.call('HKEYS', base .. 'session:' .. ARGV[3])) do
  local queue, entry = string.match(field, '^entry:(.*)/([^/]*)$')
  if queue and not known[entry] then
    local seq = place_of(queue, entry)
    -- One that was entered since may be newer than the client's list.
    if not seq or seq < began then remove(queue, entry) end
  end
end
return { 'ok' }
