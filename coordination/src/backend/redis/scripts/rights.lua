-- Calls each command that the other scripts use, on a key and a channel that never exist. Returns the commands that the user
-- may not call, and the server's error for the first of them.
local refused = {}
local said

local function may(command, ...)
  local answer = redis.pcall(command, ...)
  local failed = type(answer) == 'table' and answer.err
  -- Only a missing right counts. The first two texts are in the errors of Redis 7 and newer, the third is in that of Redis 6.
  if not failed or not (string.find(failed, 'NOPERM') or string.find(failed, 'ACL failure')
    or string.find(failed, 'user executing the script')) then return true end
  refused[#refused + 1] = string.lower(command)
  said = said or failed
  return false
end

local key = KEYS[1]
may('EXISTS', key)
may('GET', key)
may('SET', key, '', 'XX')
may('PEXPIRE', key, 1)
may('HDEL', key, 'x')
may('HEXISTS', key, 'x')
may('HGET', key, 'x')
may('HGETALL', key)
may('HKEYS', key)
may('HMGET', key, 'x')
may('HSCAN', key, 0)
may('ZADD', key, 'XX', 1, 'x')
may('ZCARD', key)
may('ZRANGE', key, 0, 0)
may('ZRANGEBYSCORE', key, 0, 0)
may('ZREM', key, 'x')
may('ZREMRANGEBYSCORE', key, 0, 0)
may('ZREVRANGE', key, 0, 0)
may('ZSCAN', key, 0)
may('ZSCORE', key, 'x')
may('TIME')
may('INFO', 'server')
may('PUBLISH', key, '')
-- These commands create the key, so they are tried only if the user may remove it again.
if may('DEL', key) then
  may('HSET', key, 'x', '')
  redis.pcall('DEL', key)
end
return { table.concat(refused, ', '), said or '' }
