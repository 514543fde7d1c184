-- Removes an entry. Arguments (ARGV): record and age, which `tick` reads; session (empty: the entry is another client's) and
-- generation; queue, the entry's id, and its number (empty: not known).
use_memory()
if not tick() then return { 'stranger' } end
local session, generation, queue, id, seq = unpack(ARGV, 3, 7)
if session ~= '' then
  local key = base .. 'session:' .. session
  local newest = tonumber(ask_session(session, 'HGET', 'generation'))
  if newest and tonumber(generation) < newest then return { 'stale' } end
  if newest and tonumber(generation) > newest then
    redis.call('HSET', key, 'generation', generation)
  end
end
remove(queue, id, tonumber(seq))
return { 'ok' }
