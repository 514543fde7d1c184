-- record, age, session, generation, member, channel, lease, the client's session before, its host (may be missing), how
-- far the record is behind that host's clock
if not tick() then return { 'stranger' } end
sweep()
local id, generation, member, channel, lease, previous, host, behind = unpack(ARGV, 3, 10)
if was_done('closed:' .. id) then return { 'lost' } end
-- This call was given up, and comes late: it was made again since.
local newest = tonumber(ask_session(id, 'HGET', 'generation'))
if newest and tonumber(generation) < newest then return { 'stale' } end
if previous ~= '' and previous ~= id then
  note_done('closed:' .. previous)
  finish(previous)
end
local owner = ask(base .. 'member:' .. member, 'GET')
if owner and owner ~= id then
  local expires = end_of(owner)
  if expires and expires > now then return { 'taken' } end
end
local expires = digits(now + lease)
redis.call('HSET', base .. 'session:' .. id, 'member', member, 'channel', channel, 'lease', lease,
  'expires', expires, 'generation', generation)
redis.call('ZADD', base .. 'sessions', expires, id)
redis.call('SET', base .. 'member:' .. member, id)
use(tonumber(lease))
hold(base .. 'session:' .. id)
hold(base .. 'member:' .. member)
hold(base .. 'sessions')
-- By this the next client of this host knows how much time went by while no client was there.
if host and reach < needed then redis.call('HSETNX', KEYS[1], 'host:' .. host, behind) end
keep()
return { 'ok' }
