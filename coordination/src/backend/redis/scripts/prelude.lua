-- Every script consists of this text and its own text after it. This text has the functions that the scripts share.
--
-- KEYS[1] is the hash with the namespace's clock and record. The names of all other keys have the same hash tag, so that a
-- cluster keeps them on one node. ARGV[1] is the name of the record that the client knows; ARGV[2] has two numbers, see `tick`.
--
-- The namespace's clock is the server's clock plus an offset. If the server's clock is set back, the offset is raised, so that
-- the namespace's clock never goes back. Sessions end by this clock. All times are in microseconds.
--
-- The *record* says what the server may have forgotten. Its *reach* is a length of time: the server has certainly forgotten
-- nothing within the last `reach`.
--
-- The keys, and the fields of the hashes:
--
--   clock            hash, the record:
--     offset         how far the namespace's clock is ahead of the server's clock
--     last           the newest number or time that was written here; all later ones are larger
--     epoch          an id of the namespace's clock, for recipes: it is another one after a loss of all data
--     server         the record's name: the id of the server's run, and `began`. It changes when the server's process has
--                    restarted, when the server has become the master, and after each loss of data
--     term           the id (`master_replid`) that the server had as a master when it was greeted
--     began          the time at which the record got its name
--     before         the records before this one, the newest first, each with its last time, as long as nothing was lost
--                    between them and this one; `-`: none
--     home           the id of the server's run that wrote these data itself, see `settle`
--     synced         1: whatever the server has answered is on the disk
--     reach          the reach at `last`, measured by the clients' clocks, which nobody sets
--     needed         how long the reach has to be before anything is granted
--     why            what may have been forgotten, for the error in which clients show it
--     longest        no session that lives, or that may have been forgotten, has a longer lease than this
--     using, since   the longest lease with which a session was opened or renewed after the time `since`, see `use`
--     host:<id>      a moment since when nothing was forgotten, by the clock of this host, and by its wall clock
--     heard          until this time, some client may listen to changes of queues
--     up:<length>    the name of the record, if its reach was at least this length of quarantine (empty: `needed`)
--   sessions         sorted set: the sessions, by the time at which each ends
--   session:<id>     hash: member, channel, lease, expires, generation; entry:<queue>/<id> is the text of an entry
--   member:<member>  the session that has this member id
--   exclusive:<queue>, shared:<queue>  sorted sets: the queue's entries of this mode, by their numbers
--   values:<kind>    hash: for each queue of the kind, by name, the version of the queue's value, a blank, and its text
--   records:<queue>  hash: the records beside the queue's value, by name
--   done             sorted set, by the reach at that time: closed:<id>, a session that was closed; created:<id>, a write that
--                    created a value. As long as it has these, the call that opened the session, or the write, has no effect
--                    if it arrives once more.

local base = string.sub(KEYS[1], 1, -6)
local now, last, began, longest, needed, using, since, epoch, reach, heard
-- How many entries and ended sessions this call may still remove. The limit keeps the call short, because the server does
-- nothing else while a script runs.
local budget = 300
-- `over` lists the sessions that this call has found to be over, and `is_over` is the same as a set. `clear` removes them in
-- this order: `removed` of them are removed already, and `is_removed` is these as a set.
local over, is_over, removed, is_removed = {}, {}, 0, {}

-- If the memory is full, Redis refuses a script's writes, unless the script has made a write before that needs no memory.
-- Removing a key that does not exist counts as such a write. Scripts that free memory, or only change what exists, call this
-- first, so that they work even if the memory is full.
local function use_memory()
  redis.call('DEL', base .. 'nothing')
end

-- A number as text, with all its digits. Lua's own conversion would keep only 14 of them.
local function digits(number)
  return string.format('%.0f', number)
end

-- The largest value that each number of a sound record can have. A time is at most 2^52 microseconds (in the year 2112), so
-- that later numbers are still exact in Lua. A lease is at most a day.
local most = { longest = 86400000000 }
most.needed, most.using = most.longest, most.longest
most.last, most.began, most.since, most.reach, most.epoch, most.offset = 2^52, 2^52, 2^52, 2^52, 2^52, 2^52

local function is_number(name, text)
  local sign, rest = string.match(text or '', '^(%-?)(%d+)$')
  return rest and tonumber(rest) <= most[name] and (sign == '' or name == 'offset')
end

-- Whether `numbers` can be the numbers of a record with the name `server`. False if one of them is missing or impossible,
-- because somebody has changed it.
local function is_sound(server, numbers)
  for name in pairs(most) do
    if not is_number(name, numbers[name]) then return false end
  end
  local newest = tonumber(numbers.last)
  return string.match(server, '^%x+:(%d+)$') == numbers.began and tonumber(numbers.began) <= newest
    and tonumber(numbers.since) <= newest
end

-- Runs a command on a key. Returns nil if the key has another type, because another program has put a key of its own in its
-- place. Used for the keys of one session, and of a queue in which a session has entries: that session or queue is lost then,
-- but the script goes on, so that other sessions and queues are not disturbed.
local function ask(key, command, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then return redis.call(command, key, ...) end
  -- Not just the end of the function: `tonumber` fails if it gets no value at all.
  return nil
end

local function ask_session(id, command, ...)
  return ask(base .. 'session:' .. id, command, ...)
end

-- The time at which a session ends. If another program has replaced the session's key, the session ends at the time that the
-- sorted set has: its client cannot renew the session any more, but relies on it until that time.
local function end_of(id)
  local expires = ask_session(id, 'HGET', 'expires')
  if expires == nil then expires = redis.call('ZSCORE', base .. 'sessions', id) end
  return tonumber(expires)
end

-- Whether the server has been the master all the time since it was greeted; `term` is the id that it had as the master then. If
-- it was a replica in between, it has copied another server's data. These may contain a record that this server wrote earlier,
-- and lack what this server granted last. The role is checked besides the id, because with `replica-read-only no` a replica
-- carries out scripts too, and its id does not show that it is a replica: the id is still the one that it had as a master until
-- it is in step with its new master, and then that of the new master.
local function is_master_since(term)
  local info = redis.call('INFO', 'replication')
  return string.find(info, 'role:master', 1, true) and string.find(info, 'master_replid:' .. term .. '\r', 1, true)
end

-- Writes into the record (`home`) that the process with the id `run` wrote these data itself. Only the server's own memory and
-- its own log get this id; replicas are sent `-` instead. So data that were copied by a replica can be recognised for ever:
-- also after a restart with other settings, and when `INFO` no longer shows that the server was a replica (`repl-backlog-ttl`).
-- Heartbeats write it again, because a new replica first copies all data as they are here, and gets the `-` only when this is
-- written the next time.
local function settle(run)
  redis.set_repl(redis.REPL_REPLICA)
  redis.call('HSET', KEYS[1], 'home', '-')
  redis.set_repl(redis.REPL_AOF)
  redis.call('HSET', KEYS[1], 'home', run)
  redis.set_repl(redis.REPL_ALL)
end

-- Reads the record and the time. False: the client has to greet the server first, because the server was not greeted since it
-- started, became the master or lost data, or because it has another record than the client knows. ARGV[2] has two numbers: the
-- reach by the client's clock, and the newest time in an answer that the client has received under this record.
local function tick()
  local names = { 'server', 'term', 'heard', 'offset', 'last', 'began', 'longest', 'epoch', 'reach', 'needed', 'using',
    'since' }
  local clock = {}
  for at, text in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do clock[names[at]] = text end
  if clock.server ~= ARGV[1] or not clock.term or not is_master_since(clock.term) then return false end
  -- If somebody has changed a number of the record to an impossible one, the record is not used: the greeting begins a new
  -- record.
  if not is_sound(clock.server, clock) then return false end
  local time = redis.call('TIME')
  local offset = tonumber(clock.offset)
  last, began, longest = tonumber(clock.last), tonumber(clock.began), tonumber(clock.longest)
  using, since = tonumber(clock.using), tonumber(clock.since)
  -- If the last time in the record is earlier than one that the client has received, these data are older: somebody has brought
  -- back old data while the server ran.
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

-- Writes the time and the reach into the record, so that no later call finds an earlier time.
local function keep()
  if now > last then
    last = now
    redis.call('HSET', KEYS[1], 'last', digits(now), 'reach', digits(reach))
  end
end

-- Sets when a key expires: a day after the longest lease. If all clients have crashed, no client is left that removes their
-- keys, so the keys have to expire. Living clients call this again and again for each key that has something of theirs, so that
-- it does not expire.
local function hold(key)
  redis.call('PEXPIRE', key, digits(86400000 + longest / 1000))
end

local function hold_queue(queue)
  hold(base .. 'exclusive:' .. queue)
  hold(base .. 'shared:' .. queue)
end

-- Whether `note_done` has noted this within the last minute, or even before.
local function was_done(what)
  return redis.call('ZSCORE', base .. 'done', what)
end

-- Notes that `what` was done, and remembers it for at least a minute. A call that was sent before that and given up by its
-- client has arrived by then. Older notes are removed when there are more than a thousand notes. So at most a thousand notes
-- stay, and those of the last minute. The whole set expires if nothing is noted for about a day.
local function note_done(what)
  local done = base .. 'done'
  if redis.call('ZCARD', done) > 1000 then
    redis.call('ZREMRANGEBYSCORE', done, '-inf', digits(reach - 60000000))
  end
  redis.call('ZADD', done, digits(reach), what)
  hold(done)
end

-- Returns the next number. It is larger than all earlier numbers of the namespace, even if they were lost, because it is at
-- least the time.
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

-- The newest entry with a smaller number than `seq` that blocks an entry of the mode `mode`, and its number. Whether that
-- entry's session is over is not checked.
local function before(queue, mode, seq)
  local id, its = newest_before(base .. 'exclusive:' .. queue, seq)
  if mode == 'exclusive' then
    local other, others = newest_before(base .. 'shared:' .. queue, seq)
    if other and (not id or others > its) then return other, others end
  end
  return id, its
end

-- Notes that a session is over, so that `clear` removes it.
local function doom(id)
  if is_over[id] then return end
  is_over[id] = true
  over[#over + 1] = id
end

-- Publishes to the owner of the entry `waiter` that the entry with the number `gone` no longer blocks it, and whether anything
-- else does (`free` or `blocked`). In a cluster this reaches the owner through other servers, too, and also after this server was
-- replaced without knowing it. So the record's name is in it. Whoever may use the channel can publish there, too, and read what is
-- published, but cannot know the waiter's id before its turn: by that id, its owner knows that a script has said `free`.
local function tell(queue, gone, waiter, seq, mode)
  local session = session_of(waiter)
  local found = ask_session(session, 'HMGET', 'channel', 'expires')
  if not found or not found[1] then return end
  if (tonumber(found[2]) or 0) <= now then return doom(session) end
  -- Whether quarantine is over for the waiter. If it entered after the record began, it has passed the check of quarantine
  -- then. If it is older and quarantine lasts, it is sent `blocked`, so that its client asks the server.
  local is_out = tonumber(seq) >= began or reach >= needed
  local is_turn = is_out and not before(queue, mode, tonumber(seq))
  local turn = is_turn and 'free' or 'blocked'
  local words = { queue, digits(gone), mode, seq, turn, ARGV[1] }
  if is_turn then words[7] = waiter end
  redis.call('PUBLISH', base .. 'client:' .. found[1], table.concat(words, ' '))
end

-- The entry with the number `seq` is gone, or has become shared. Publishes this to the owners of the entries of which it was
-- the nearest blocker: all shared entries up to the next exclusive one, or that exclusive one itself if no shared entry is
-- between.
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

-- Publishes a change of the queue on the queue's channel, if some client may listen (`heard`).
local function publish(queue, what)
  if heard then redis.call('PUBLISH', base .. 'queue:' .. queue, what) end
end

-- Notes that some client listens to a queue, so that changes are published for the next 30 seconds. A client that listens calls
-- this more often than that.
local function hear()
  if heard and heard > now + 15000000 then return end
  heard = now + 30000000
  redis.call('HSET', KEYS[1], 'heard', digits(heard))
end

-- An entry's number and mode; nil: there is no such entry. If another program has replaced the queue's keys, the queue has no
-- entries.
local function place_of(queue, id)
  for _, mode in ipairs({ 'exclusive', 'shared' }) do
    local seq = ask(base .. mode .. ':' .. queue, 'ZSCORE', id)
    if seq then return tonumber(seq), mode end
  end
end

-- Removes an entry, and publishes that it is gone. If `only` is given and the entry has another number, nothing is removed.
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

-- Removes the sessions in `over` and their entries, until the budget of this call is used up. What is left counts as removed,
-- and later calls remove it. The list `over` may grow while this runs: when an entry is removed, `tell` may find that the
-- session of a waiter is over as well, and that may happen thousands of times. So this is a loop, and no recursion.
local function clear()
  while budget > 0 and removed < #over do
    local id = over[removed + 1]
    local fields = ask_session(id, 'HKEYS')
    for _, field in ipairs(fields or {}) do
      local queue, entry = string.match(field, '^entry:(.*)/([^/]*)$')
      if queue then
        if budget <= 0 then return end
        -- Another program may have replaced one of the queue's two keys. Then `remove` fails in the middle with WRONGTYPE,
        -- which is ignored here: the clients whose entries were blocked find the error with their next call.
        local is_done, problem = pcall(remove, queue, entry)
        local said = type(problem) == 'table' and problem.err or problem
        if not is_done and not string.find(said, 'WRONGTYPE', 1, true) then error(problem) end
      end
    end
    local name = ask_session(id, 'HGET', 'member')
    local member = name and base .. 'member:' .. name
    if member and ask(member, 'GET') == id then redis.call('DEL', member) end
    -- `fields` is nil if another program has put a key of its own in the session's place. That key is not removed.
    if fields then redis.call('DEL', base .. 'session:' .. id) end
    redis.call('ZREM', base .. 'sessions', id)
    budget, removed, is_removed[id] = budget - 1, removed + 1, true
  end
end

-- Ends a session and removes its entries. False: some are not removed yet, because the budget of this call is used up.
local function finish(id)
  if redis.call('EXISTS', base .. 'session:' .. id) == 1 then
    ask_session(id, 'HSET', 'expires', '0')
    redis.call('ZADD', base .. 'sessions', '0', id)
  end
  doom(id)
  clear()
  return is_removed[id]
end

-- To be called when a session with this lease is opened or renewed. It keeps the record's `longest` up to date, which says how
-- long nothing is granted if the data are lost one day.
--
-- Invariant: no living session has a longer lease than `longest`. A longer lease raises `longest` at once. To lower it, periods
-- are measured, each at least as long as `longest`; `since` is the start of the period, and `using` is the longest lease that
-- was seen in it. At the end of a period, `longest` is lowered to `using`. This keeps the invariant, because every living
-- session is opened or renewed at least once within its lease, so at least once in the period. Both the period and the leases
-- are measured by the namespace's clock. Sessions that the server has forgotten may not be seen in a period. So `longest` is
-- lowered only when the reach is at least `needed`: by then these sessions are over.
local function use(lease)
  if lease > longest then
    longest = lease
    redis.call('HSET', KEYS[1], 'longest', digits(longest))
    -- As long as the reach is less than `needed`, sessions may live that the server has forgotten, and they may have a lease of
    -- this length too. So quarantine is made longer.
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

-- Ends the sessions whose leases are over, and removes their entries, as far as the budget allows.
local function sweep()
  local found = redis.call('ZRANGEBYSCORE', base .. 'sessions', '-inf', digits(now), 'LIMIT', 0, math.max(budget, 0))
  for _, id in ipairs(found) do doom(id) end
  clear()
end

-- Checks whether a call of this session is allowed. Returns the reason if it is refused (`lost` or `stale`); otherwise nil, and
-- the value of `field` in the session's hash.
--
-- If a client has given up a call together with its connection, the call may arrive late. So a call is refused if an earlier
-- call of its session came on a newer connection, that is with a higher generation.
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

-- If an entry is alive, returns for how long its lease still lasts, and its text, if that can be read. An entry is not alive if
-- its session is over or has no text of it; then nil is returned, and the entry is removed if the budget of this call allows
-- it.
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

-- The newest living entry before `seq` that blocks an entry of this mode: its id, its number, for how long its lease still
-- lasts, its text. Entries that are not alive are removed on the way. If the budget is used up before a living entry is found,
-- the next entry is returned, with a lease that ends now: so its waiter asks again at once, and that call goes on.
local function blocker(queue, mode, seq)
  while true do
    local id, its = before(queue, mode, seq)
    if not id then return end
    if budget <= 0 then return id, its, 0, '' end
    local left, text = live(queue, id)
    if left then return id, its, left, text or '' end
  end
end

-- Checks whether quarantine is over for a client that wants the reach to be at least `length` (empty: the record's `needed`).
-- If not, returns the refusal: for how long nothing is granted, and what the server may have forgotten. Until then another
-- client may hold a lock that the server has forgotten.
local function quarantine(length)
  length = tonumber(length) or needed
  if reach < length then
    return { 'quarantine', length - reach, redis.call('HGET', KEYS[1], 'why') }
  end
end

-- Whether the queue has a living entry. Also true if the budget of this call is used up before that is known.
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
