-- What every script begins with.
--
-- KEYS[1] is the clock, and every other key has its hash tag. Sessions end by that clock: it goes by the server's, but is never
-- set back: if the server's is, it goes on from where it was. Times are microseconds.
--
--   clock            hash, the record:
--     offset         how far the clock is ahead of the server's
--     last           the last number or time that was told
--     epoch          which clock it is, for recipes
--     server         the record's name, another one for each start of the server's process, each time it becomes the master,
--                    and after each loss of the data
--     term           since when it is the master
--     began          since when the record has its name
--     before         the records that it goes on from, the newest first, each with its last time, as far as nothing is
--                    missing of them
--     home           see `settle`
--     synced         whether all that is answered is on the disk
--     reach          for how long nothing was forgotten, at least, by the clients' clocks, which nobody sets
--     needed         how long reach has to be before anything is granted
--     why            what may have been forgotten before that
--     longest        no lease is longer, of sessions that live or may have been forgotten
--     using, since   the longest lease that was said since then, see `use`
--     host:<id>      how far reach was behind the clock of a host
--     heard          until when somebody may listen to what happens in queues
--     up:<length>    the name of the record, once it reaches back for this length of quarantine (empty: as far as needed)
--   sessions         sorted set: session by its end
--   session:<id>     hash: member, channel, lease, expires, generation; entry:<queue>/<id> is an entry's text
--   member:<member>  which session has the member id
--   exclusive:<queue>, shared:<queue>  sorted sets: entry by its number
--   values:<kind>    hash: a queue's value by its name, after its version
--   records:<queue>  hash: what is beside the queue's value, by its name
--   done             sorted set, by reach: closed:<id>, a session that was closed; created:<id>, a write that created a
--                    value: the call that opened the one, and the other call, may come again when that is gone

local base = string.sub(KEYS[1], 1, -6)
local now, last, began, longest, needed, using, since, epoch, reach, heard
-- How much of what the dead have left one call may remove, so that the server stands still for nobody.
local budget = 300
-- Sessions that are over, and how many of them are removed.
local over, is_over, removed, is_removed = {}, {}, 0, {}

-- With full memory, Redis refuses writes unless the script has written before; removing a key that is not there counts as that.
-- Scripts that only keep, or give back, what is there call this first.
local function use_memory()
  redis.call('DEL', base .. 'nothing')
end

-- A number as text: Lua's own conversion keeps 14 digits.
local function digits(number)
  return string.format('%.0f', number)
end

-- How large a number of the record may be. A time is one before the year 2112, so that it can be counted on from there; no
-- lease is longer than a day.
local most = { longest = 86400000000 }
most.needed, most.using = most.longest, most.longest
most.last, most.began, most.since, most.reach, most.epoch, most.offset = 2^52, 2^52, 2^52, 2^52, 2^52, 2^52

local function is_number(name, text)
  local sign, rest = string.match(text or '', '^(%-?)(%d+)$')
  return rest and tonumber(rest) <= most[name] and (sign == '' or name == 'offset')
end

-- Whether these are the numbers of a record of this name, and nobody has changed one.
local function is_sound(server, numbers)
  for name in pairs(most) do
    if not is_number(name, numbers[name]) then return false end
  end
  local newest = tonumber(numbers.last)
  return string.match(server, '^%x+:(%d+)$') == numbers.began and tonumber(numbers.began) <= newest
    and tonumber(numbers.since) <= newest
end

-- Asks a key; nil: another program has put one of another type in its place. For keys of one session, and for a queue that one
-- session has entries in: these are lost by that, and others are not disturbed.
local function ask(key, command, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then return redis.call(command, key, ...) end
end

local function ask_session(id, command, ...)
  return ask(base .. 'session:' .. id, command, ...)
end

-- When a session ends. One whose key was replaced by another program's keeps the time that it had: its client can no longer
-- renew it, and counts on that time.
local function end_of(id)
  local expires = ask_session(id, 'HGET', 'expires')
  if expires == nil then expires = redis.call('ZSCORE', base .. 'sessions', id) end
  return tonumber(expires)
end

-- Whether the server has been the master ever since it was greeted. If it was a replica meanwhile, the data that it copied may
-- name a record of this server's, and lack what it granted last. A replica that may be written to (`replica-read-only no`) has
-- the id of its master or, until it is in step, that of its own time as one: so its role is looked at too.
local function is_master_since(term)
  local info = redis.call('INFO', 'replication')
  return string.find(info, 'role:master', 1, true) and string.find(info, 'master_replid:' .. term .. '\r', 1, true)
end

-- Writes to which run of the server these data belong, to its own log only; replicas are sent something else. So copied data
-- show for ever that they are: also after a restart with other settings, and when `INFO` no longer tells it
-- (`repl-backlog-ttl`). Written again with heartbeats, as a new replica copies all of the data, and this with them.
local function settle(run)
  redis.set_repl(redis.REPL_REPLICA)
  redis.call('HSET', KEYS[1], 'home', '-')
  redis.set_repl(redis.REPL_AOF)
  redis.call('HSET', KEYS[1], 'home', run)
  redis.set_repl(redis.REPL_ALL)
end

-- Reads the clock; false: this server has not been greeted since it started, became the master, or lost its data. Every call
-- says how far the record reaches back by its client's clock.
local function tick()
  local names = { 'server', 'term', 'heard', 'offset', 'last', 'began', 'longest', 'epoch', 'reach', 'needed', 'using',
    'since' }
  local clock = {}
  for at, text in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do clock[names[at]] = text end
  if clock.server ~= ARGV[1] or not clock.term or not is_master_since(clock.term) then return false end
  -- A record in which somebody has changed a number counts as none: the greeting begins another.
  if not is_sound(clock.server, clock) then return false end
  local time = redis.call('TIME')
  local offset = tonumber(clock.offset)
  last, began, longest = tonumber(clock.last), tonumber(clock.began), tonumber(clock.longest)
  using, since = tonumber(clock.using), tonumber(clock.since)
  -- These data are older than the client was told: somebody has brought them back while the server ran.
  local age, newest = string.match(ARGV[2], '^(%d+) (%d+)$')
  if last < tonumber(newest) then return false end
  epoch, reach, heard = clock.epoch, math.max(tonumber(clock.reach), tonumber(age)), tonumber(clock.heard)
  needed = tonumber(clock.needed)
  now = time[1] * 1000000 + time[2] + offset
  if now < last then
    redis.call('HSET', KEYS[1], 'offset', digits(offset + last - now))
    now = last
  end
  return true
end

-- Keeps the time, so that no later one is told to be earlier.
local function keep()
  if now > last then
    last = now
    redis.call('HSET', KEYS[1], 'last', digits(now), 'reach', digits(reach))
  end
end

-- Once all clients have died nobody is left to remove a key: it expires, a day after the longest lease. Clients that live put
-- that off, for each key that has something of theirs.
local function hold(key)
  redis.call('PEXPIRE', key, digits(86400000 + longest / 1000))
end

local function hold_queue(queue)
  hold(base .. 'exclusive:' .. queue)
  hold(base .. 'shared:' .. queue)
end

-- Whether this was noted.
local function was_done(what)
  return redis.call('ZSCORE', base .. 'done', what)
end

-- Notes that this was done, for a minute at least: by then no call is under way that knows nothing of it. What is older goes
-- once there are a thousand, so never more stay than these and what was done within the last minute; and all of it goes by
-- itself where nothing is done for a day.
local function note_done(what)
  local done = base .. 'done'
  if redis.call('ZCARD', done) > 1000 then
    redis.call('ZREMRANGEBYSCORE', done, '-inf', digits(reach - 60000000))
  end
  redis.call('ZADD', done, digits(reach), what)
  hold(done)
end

-- The next number: larger than all before in the namespace, and than those of data that was lost.
local function number()
  last = math.max(last + 1, now)
  redis.call('HSET', KEYS[1], 'last', digits(last))
  return last
end

local function session_of(entry)
  return string.sub(entry, 1, 16)
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

-- This session is over: it is removed by `clear`.
local function doom(id)
  if is_over[id] then return end
  is_over[id] = true
  over[#over + 1] = id
end

-- Tells a waiter that what blocked him does so no more, and whether his turn has come by that.
local function tell(queue, gone, waiter, seq, mode)
  local session = session_of(waiter)
  local found = ask_session(session, 'HMGET', 'channel', 'expires')
  if not found or not found[1] then return end
  if (tonumber(found[2]) or 0) <= now then return doom(session) end
  -- An entry that came since the record began has passed the quarantine; an older one is to ask.
  local is_out = tonumber(seq) >= began or reach >= needed
  local is_turn = is_out and not before(queue, mode, tonumber(seq))
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

-- Somebody listens to a queue: what happens is told for longer than it takes until he says so again.
local function hear()
  if heard and heard > now + 15000000 then return end
  heard = now + 30000000
  redis.call('HSET', KEYS[1], 'heard', digits(heard))
end

-- An entry's number and mode. A queue whose key is another's by now has no entries.
local function place_of(queue, id)
  for _, mode in ipairs({ 'exclusive', 'shared' }) do
    local seq = ask(base .. mode .. ':' .. queue, 'ZSCORE', id)
    if seq then return tonumber(seq), mode end
  end
end

-- Removes an entry: the one with this number, if one is given.
local function remove(queue, id, only)
  budget = budget - 1
  local seq, mode = place_of(queue, id)
  if only and seq and seq ~= only then return end
  ask_session(session_of(id), 'HDEL', field_of(queue, id))
  if not seq then return end
  redis.call('ZREM', base .. mode .. ':' .. queue, id)
  publish(queue, 'gone ' .. digits(seq))
  pass(queue, seq, mode == 'exclusive', true)
end

-- Removes sessions that are over and what they own, as much as one call may; the rest, which nobody counts any more, is
-- for later calls. It is a loop: who is told of a removal may be dead as well, and so may be thousands.
local function clear()
  while budget > 0 and removed < #over do
    local id = over[removed + 1]
    local fields = ask_session(id, 'HKEYS')
    for _, field in ipairs(fields or {}) do
      local queue, entry = string.match(field, '^entry:(.*)/([^/]*)$')
      if queue then
        if budget <= 0 then return end
        -- One of the queue's two keys may be another's by now: those whom the entry kept waiting are told that by their next
        -- call.
        local is_done, problem = pcall(remove, queue, entry)
        local said = type(problem) == 'table' and problem.err or problem
        if not is_done and not string.find(said, 'WRONGTYPE', 1, true) then error(problem) end
      end
    end
    local name = ask_session(id, 'HGET', 'member')
    local member = name and base .. 'member:' .. name
    if member and ask(member, 'GET') == id then redis.call('DEL', member) end
    -- Not what somebody else has put there.
    if fields then redis.call('DEL', base .. 'session:' .. id) end
    redis.call('ZREM', base .. 'sessions', id)
    budget, removed, is_removed[id] = budget - 1, removed + 1, true
  end
end

-- Ends a session; false: not all that it owns is removed yet.
local function finish(id)
  if redis.call('EXISTS', base .. 'session:' .. id) == 1 then
    ask_session(id, 'HSET', 'expires', '0')
    redis.call('ZADD', base .. 'sessions', '0', id)
  end
  doom(id)
  clear()
  return is_removed[id]
end

-- A session with this lease was opened or renewed. By that it is known how long leases are: if the data are lost once more,
-- nothing is granted for as long.
--
-- Invariant: no session that is alive has a longer lease than `longest`. A longer one raises it at once. It is lowered at the
-- end of a period of that length at least, to the longest lease that was said within the period: every session that is
-- alive then was opened or renewed within its own lease, which is no longer than the period. That misses sessions which
-- the server has forgotten; so it is lowered only when the record reaches back as far as needed, and these are over. The
-- period is measured by the clock by which sessions end. So a client that comes back within its lease each time is counted
-- in between.
local function use(lease)
  if lease > longest then
    longest = lease
    redis.call('HSET', KEYS[1], 'longest', digits(longest))
    -- While sessions may live that were forgotten, they may have such a lease too.
    if reach < needed then
      needed = longest
      redis.call('HSET', KEYS[1], 'needed', digits(needed))
    end
  end
  if now - since >= longest and reach >= needed then
    longest = math.max(lease, using)
    redis.call('HSET', KEYS[1], 'longest', digits(longest), 'using', digits(lease), 'since', digits(now))
  elseif lease > using then
    redis.call('HSET', KEYS[1], 'using', digits(lease))
  end
end

-- Ends what has expired.
local function sweep()
  local found = redis.call('ZRANGEBYSCORE', base .. 'sessions', '-inf', digits(now), 'LIMIT', 0, math.max(budget, 0))
  for _, id in ipairs(found) do doom(id) end
  clear()
end

-- Why a call of this session is refused, or nil and what it has in this field.
--
-- A call that was given up may arrive late, but on a connection that was given up too: so none counts that
-- comes on an older connection than another of its session.
local function admit(id, generation, field)
  local key = base .. 'session:' .. id
  local found = redis.call('HMGET', key, 'expires', 'generation', field)
  if not found[1] then return 'lost' end
  if (tonumber(found[1]) or 0) <= now then
    finish(id)
    return 'lost'
  end
  local newest = tonumber(found[2]) or 0
  if tonumber(generation) < newest then return 'stale' end
  if tonumber(generation) > newest then redis.call('HSET', key, 'generation', generation) end
  return nil, found[3]
end

-- What is left of an entry's lease, and its text, if that is known. One whose session is over, or does not know it, is
-- removed, if this call may do that yet.
local function live(queue, id)
  local session = session_of(id)
  local found = ask_session(session, 'HMGET', 'expires', field_of(queue, id))
  local expires = found and tonumber(found[1]) or not found and end_of(session)
  if expires and expires > now and (not found or found[2]) then return expires - now, found and found[2] end
  if budget <= 0 then return end
  remove(queue, id)
  if expires and expires <= now then
    doom(session)
    clear()
  end
end

-- The live entry that keeps one of this mode waiting: id, number, what is left of its lease, text. If that takes more than
-- one call may do, the next entry, with nothing left: it is looked at again at once.
local function blocker(queue, mode, seq)
  while true do
    local id, its = before(queue, mode, seq)
    if not id then return end
    if budget <= 0 then return id, its, 0, '' end
    local left, text = live(queue, id)
    if left then return id, its, left, text or '' end
  end
end

-- How long nothing is granted yet, for a client that wants the record to reach back for so long (empty: for as long as
-- needed), and why: another may hold what the server has forgotten.
local function quarantine(length)
  length = tonumber(length) or needed
  if reach < length then
    return { 'quarantine', length - reach, redis.call('HGET', KEYS[1], 'why') }
  end
end

-- Whether somebody is in the queue, or this call cannot tell.
local function is_used(queue)
  for _, mode in ipairs({ 'exclusive', 'shared' }) do
    repeat
      local first = redis.call('ZRANGE', base .. mode .. ':' .. queue, 0, 0)[1]
      if first and (budget <= 0 or live(queue, first)) then return true end
    until not first
  end
  return false
end

local function standing(queue, mode, seq)
  local id, its, left, text = blocker(queue, mode, seq)
  return { 'ok', seq, id, its, left, text }
end
