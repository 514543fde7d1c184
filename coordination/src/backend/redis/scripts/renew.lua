-- Extends a session's lease, and returns the ids of those entries that are gone. Arguments (ARGV): record and age, which `tick`
-- reads; session, generation; then queue and id of each entry that the client holds.
use_memory()
if not tick() then return { 'stranger' } end
local id = ARGV[3]
local refused, lease = admit(id, ARGV[4], 'lease')
if refused then return { refused } end
use(tonumber(lease))
settle(string.match(ARGV[1], '^[^:]*'))
local expires, session = digits(now + lease), base .. 'session:' .. id
redis.call('HSET', session, 'expires', expires)
redis.call('ZADD', base .. 'sessions', expires, id)
hold(session)
hold(base .. 'member:' .. redis.call('HGET', session, 'member'))
hold(base .. 'sessions')
keep()
if heard and heard < now then redis.call('HDEL', KEYS[1], 'heard') end
sweep()
local gone = { 'ok', last }
for at = 5, #ARGV, 2 do
  local queue, entry = ARGV[at], ARGV[at + 1]
  local seq, mode = place_of(queue, entry)
  if seq and ask_session(session_of(entry), 'HEXISTS', field_of(queue, entry)) == 1 then
    hold(base .. mode .. ':' .. queue)
  else
    remove(queue, entry)
    gone[#gone + 1] = entry
  end
end
return gone
