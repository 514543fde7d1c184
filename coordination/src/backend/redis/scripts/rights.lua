-- Tries each command that the other scripts call, on a key and a channel that there never are: answers those that this user
-- may not use, and what the server said of the first.
local refused = {}
local said

local function may(command, ...)
  local answer = redis.pcall(command, ...)
  local failed = type(answer) == 'table' and answer.err
  -- What Redis 7 and newer say, and what Redis 6 says.
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
-- These make the key, and so are tried only if it can be removed again.
if may('DEL', key) then
  may('HSET', key, 'x', '')
  may('HSETNX', key, 'x', '')
  redis.pcall('DEL', key)
end
return { table.concat(refused, ', '), said or '' }
