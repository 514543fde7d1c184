-- What every script begins with.
--
-- KEYS[1] is the clock, and every other key has its hash tag. Sessions end by that clock: the server's, which
-- is never set back, and goes on at once where the server's was. Times are microseconds.
--
--   clock            hash: offset, last, epoch; of which server it is, when that started, whether it forgets
--                    when it restarts; the longest lease; heard: until when somebody may listen to what
--                    happens in queues; up:<length>: the server that has been up for as long as clients want
--                    that say so, up: for the longest lease
--   sessions         sorted set: session by its end
--   session:<id>     hash: member, channel, lease, expires, generation; entry:<queue>/<id> is an entry's text
--   member:<member>  which session has the member id
--   exclusive:<queue>, shared:<queue>  sorted sets: entry by its number
--   values:<kind>    hash: a queue's value by its name, after its version
--   closed:<id>      a session that was closed before it was opened
--   created:<id>     a write that created a value: the same call may come again when that is gone

local base = string.sub(KEYS[1], 1, -6)
local now, last, started, longest, epoch, forgets, heard
local finish

-- A number as text: Lua's own conversion keeps 14 digits.
local function digits(number)
  return string.format('%.0f', number)
end

-- Reads the clock; false: this server has not been greeted since it started, or lost its data.
local function tick()
  local clock = redis.call('HMGET', KEYS[1], 'server', 'offset', 'last', 'started', 'longest', 'epoch',
    'forgets', 'heard')
  if clock[1] ~= ARGV[1] then return false end
  local time = redis.call('TIME')
  local offset = tonumber(clock[2])
  last, started, longest = tonumber(clock[3]), tonumber(clock[4]), tonumber(clock[5])
  epoch, forgets, heard = clock[6], clock[7] == '1', tonumber(clock[8])
  now = time[1] * 1000000 + time[2] + offset
  if now < last then
    redis.call('HSET', KEYS[1], 'offset', digits(offset + last - now))
    now = last
  end
  return true
end

-- Keeps the time, so that it is not told again.
local function keep()
  if now > last then
    last = now
    redis.call('HSET', KEYS[1], 'last', digits(now))
  end
end

-- The next number: larger than all before in the namespace, and than those of data that was lost.
local function number()
  last = math.max(last + 1, now)
  redis.call('HSET', KEYS[1], 'last', digits(last))
  return last
end

local function session_of(entry)
  return base .. 'session:' .. string.sub(entry, 1, 16)
end

local function field_of(queue, entry)
  return 'entry:' .. queue .. '/' .. entry
end

local function newest_before(set, seq)
  local found = redis.call(
    'ZREVRANGEBYSCORE', set, '(' .. digits(seq), '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return found[1], tonumber(found[2])
end

-- The newest entry before that keeps one of this mode waiting, whether its session is alive or not.
local function before(queue, mode, seq)
  local id, its = newest_before(base .. 'exclusive:' .. queue, seq)
  if mode == 'exclusive' then
    local other, others = newest_before(base .. 'shared:' .. queue, seq)
    if other and (not id or others > its) then return other, others end
  end
  return id, its
end

-- Tells a waiter that what blocked him does so no more, and whether his turn has come by that.
local function tell(queue, gone, waiter, seq, mode)
  local found = redis.call('HMGET', session_of(waiter), 'channel', 'expires')
  if not found[1] then return end
  if tonumber(found[2]) <= now then return finish(string.sub(waiter, 1, 16)) end
  -- In quarantine he is to ask: the server knows the longest lease only.
  local is_up = not forgets or now >= started + longest
  if is_up then redis.call('HSET', KEYS[1], 'up:', ARGV[1]) end
  local is_turn = is_up and not before(queue, mode, tonumber(seq))
  local turn = is_turn and 'free' or 'blocked'
  local words = { queue, digits(gone), mode, seq, turn }
  redis.call('PUBLISH', base .. 'client:' .. found[1], table.concat(words, ' '))
end

-- An entry has gone, or has become shared: tells those whom it alone kept waiting.
local function pass(queue, seq, was_exclusive, is_gone)
  local from = '(' .. digits(seq)
  local exclusive = redis.call('ZRANGEBYSCORE', base .. 'exclusive:' .. queue, from, '+inf',
    'WITHSCORES', 'LIMIT', 0, 1)
  local to = exclusive[2] and '(' .. exclusive[2] or '+inf'
  local shared = redis.call(
    'ZRANGEBYSCORE', base .. 'shared:' .. queue, from, to, 'WITHSCORES', 'LIMIT', 0,
    was_exclusive and -1 or 1)
  if was_exclusive then
    for at = 1, #shared, 2 do tell(queue, seq, shared[at], shared[at + 1], 'shared') end
  end
  if is_gone and exclusive[1] and #shared == 0 then
    tell(queue, seq, exclusive[1], exclusive[2], 'exclusive')
  end
end

-- Tells observers of the queue what happened.
local function publish(queue, what)
  if heard then redis.call('PUBLISH', base .. 'queue:' .. queue, what) end
end

-- Somebody listens to a queue: what happens is told for as long as he takes to say so again, and longer.
local function hear()
  if heard and heard > now + 15000000 then return end
  heard = now + 30000000
  redis.call('HSET', KEYS[1], 'heard', digits(heard))
end

-- Removes an entry: the one with this number, if one is given.
local function remove(queue, id, only)
  local set, is_exclusive = base .. 'exclusive:' .. queue, true
  local seq = redis.call('ZSCORE', set, id)
  if not seq then
    set, is_exclusive = base .. 'shared:' .. queue, false
    seq = redis.call('ZSCORE', set, id)
  end
  seq = tonumber(seq)
  if only and seq and seq ~= only then return end
  redis.call('HDEL', session_of(id), field_of(queue, id))
  if not seq then return end
  redis.call('ZREM', set, id)
  publish(queue, 'gone ' .. digits(seq))
  pass(queue, seq, is_exclusive, true)
end

-- Ends a session and all that it owns.
function finish(id)
  local key = base .. 'session:' .. id
  local all = redis.call('HGETALL', key)
  redis.call('DEL', key)
  redis.call('ZREM', base .. 'sessions', id)
  for at = 1, #all, 2 do
    local queue, entry = string.match(all[at], '^entry:(.*)/([^/]*)$')
    if queue then
      remove(queue, entry)
    elseif all[at] == 'member' then
      local member = base .. 'member:' .. all[at + 1]
      if redis.call('GET', member) == id then redis.call('DEL', member) end
    end
  end
end

-- Ends what has expired.
local function sweep()
  repeat
    local over = redis.call(
      'ZRANGEBYSCORE', base .. 'sessions', '-inf', digits(now), 'LIMIT', 0, 100)
    for _, id in ipairs(over) do finish(id) end
  until #over < 100
end

-- Why a call of this session is refused, or nil and what it has in this field.
--
-- A call that was given up may arrive late, but on a connection that was given up too: so none counts that
-- comes on an older connection than another of its session.
local function admit(id, generation, field)
  local key = base .. 'session:' .. id
  local found = redis.call('HMGET', key, 'expires', 'generation', field)
  if not found[1] then return 'lost' end
  if tonumber(found[1]) <= now then
    finish(id)
    return 'lost'
  end
  local newest = tonumber(found[2])
  if tonumber(generation) < newest then return 'stale' end
  if tonumber(generation) > newest then redis.call('HSET', key, 'generation', generation) end
  return nil, found[3]
end

-- What is left of an entry's lease, and its text. One whose session is over, or does not know it, is removed.
local function live(queue, id)
  local found = redis.call('HMGET', session_of(id), 'expires', field_of(queue, id))
  local expires = tonumber(found[1])
  if expires and expires > now and found[2] then return expires - now, found[2] end
  if expires and expires <= now then finish(string.sub(id, 1, 16)) end
  remove(queue, id)
end

-- The live entry that keeps one of this mode waiting: id, number, what is left of its lease, text.
local function blocker(queue, mode, seq)
  while true do
    local id, its = before(queue, mode, seq)
    if not id then return end
    local left, text = live(queue, id)
    if left then return id, its, left, text end
  end
end

-- An entry's number and mode.
local function place_of(queue, id)
  local seq = redis.call('ZSCORE', base .. 'exclusive:' .. queue, id)
  if seq then return tonumber(seq), 'exclusive' end
  seq = redis.call('ZSCORE', base .. 'shared:' .. queue, id)
  if seq then return tonumber(seq), 'shared' end
end

-- How long nothing is granted yet, for a client that wants the server to be up for so long (negative: or for
-- the longest lease): another may hold what the server has forgotten.
local function quarantine(length)
  length = tonumber(length)
  if length < 0 then length = math.max(-length, longest) end
  if now < started + length then return started + length - now end
end

local function standing(queue, mode, seq)
  local id, its, left, text = blocker(queue, mode, seq)
  return { 'ok', seq, id, its, left, text }
end
