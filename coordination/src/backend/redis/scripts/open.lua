-- Opens a session. Arguments (ARGV): record and age, which `tick` reads; session, generation, member, channel, lease; the
-- client's previous session (empty: none); the name of the client's host's clock (may be missing); the moment
-- since when nothing was forgotten, by that clock, and by the wall clock.
if not tick() then return { 'stranger' } end
sweep()
local id, generation, member, channel, lease, previous, host, behind = unpack(ARGV, 3, 10)
if was_done('closed:' .. id) then return { 'lost' } end
-- The session has a newer connection already: the client has given up this call, made it again on that connection, and this one
-- arrives late.
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
-- During quarantine, notes for the client's host since when nothing was forgotten, by the host's clocks. If all clients stop for
-- a while, `greet.lua` subtracts this from the clocks of the next client on that host, and so knows that the reach has grown
-- meanwhile. It is written anew each time: if the wall clock was set back, what was noted before is of no use.
if host and reach < needed then redis.call('HSET', KEYS[1], 'host:' .. host, behind) end
keep()
return { 'ok' }
