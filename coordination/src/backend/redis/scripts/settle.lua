-- server, session, generation, then the ids of all entries that its client knows of
-- A server that came back with older data, or took over, may have entries that were left long ago.
if not tick() then return { 'stranger' } end
local refused = admit(ARGV[2], ARGV[3], 'lease')
if refused then return { refused } end
local known = {}
for at = 4, #ARGV do known[ARGV[at]] = true end
for _, field in ipairs(redis.call('HKEYS', base .. 'session:' .. ARGV[2])) do
  local queue, entry = string.match(field, '^entry:(.*)/([^/]*)$')
  if queue and not known[entry] then
    local seq = place_of(queue, entry)
    -- One that was entered since is on its way to be known.
    if not seq or seq < started then remove(queue, entry) end
  end
end
return { 'ok' }
