-- record, age (neither is used), whether the server syncs a log, if it has one, for each write, the longest lease that nobody
-- may know of any more, the client's host (empty: it has no clock that all its processes share), that clock, the record of
-- which the client was told last (empty: none), the last time that it was told within that
local syncs, unknown, host, clock, known, newest = unpack(ARGV, 3, 8)
newest = tonumber(newest)
use_memory()
local time = redis.call('TIME')
-- The server tells of itself within this step: a moment before it may have been a replica.
local info = ''
for _, section in ipairs({ 'server', 'persistence', 'replication', 'cpu' }) do
  info = info .. redis.call('INFO', section) .. '\n'
end
local function says(name)
  return string.match(info, '\n' .. name .. ':([^\r\n]*)')
end
-- A replica says this by itself, unless it may be written to: of what that grants, its master knows nothing.
if says('role') ~= 'master' then return { err = 'READONLY this server has become a replica' } end
-- Whether the log has all that is answered. Not while it is rewritten: if it was turned on just now, a restart would read an
-- older one until that is done.
local is_synced = syncs == '1' and says('aof_enabled') == '1'
  and says('aof_rewrite_in_progress') == '0' and says('aof_rewrite_scheduled') == '0'
local run, synced = says('run_id'), is_synced and '1' or '0'
-- Since when it is a master: whenever one begins to be one, it chooses another id for its data, at random. The run goes on
-- over that, and comes back with copied data; and the offset at which it began may be the same twice.
local term = says('master_replid')
-- For how long it has run, at least: the processor's time of its main thread. The uptime that it tells is by its wall clock,
-- which somebody may have set meanwhile.
local ran = (tonumber(says('used_cpu_user_main_thread')) or 0) + (tonumber(says('used_cpu_sys_main_thread')) or 0)
-- A process that executes itself anew (`DEBUG RESTART`) keeps that time: so it counts no longer than the uptime.
ran = math.max(0, math.min(ran, (tonumber(says('uptime_in_seconds')) or 0) - 1))
-- Its record of the namespace; without one, nothing in it.
local found = {}
local fields = redis.call('HGETALL', KEYS[1])
for at = 1, #fields, 2 do found[fields[at]] = fields[at + 1] end
-- A record of which somebody has changed the name or a number counts as none; those of its numbers that are sound are used.
local is_damaged = found.server and not is_sound(found.server, found)
if is_damaged then
  for name in pairs(most) do
    if not is_number(name, found[name]) then found[name] = nil end
  end
  found.server = nil
end
local function is_of_this_run(record)
  return string.sub(record or '', 1, #run + 1) == run .. ':'
end
-- This record and those that it goes on from, the newest first, each with the last time that was told within it.
local chain = (found.server or '') .. ',' .. (found.last or '') .. ' ' .. (found.before or '-')
-- Whether these data are older than what the client knows: after a restart with an old log, or with one that was turned off for
-- a while, the record says all the same that the log had everything.
local is_older = false
if known ~= '' and found.server then
  local _, at = string.find(chain, known .. ',', 1, true)
  if at then
    is_older = newest > (tonumber(string.match(chain, '^%d+', at + 1)) or 0)
  else
    -- The client's record is not among these: they are older if they go on from one that began earlier.
    is_older = tonumber(string.match(known, ':(%d+)')) > tonumber(string.match(chain, '.*:(%d+),'))
  end
end
-- Copied from another server, where the record is not at home.
local is_copy = found.server and string.match(found.server, '^[^:]*') ~= found.home
local was_replica = is_copy or says('second_repl_offset') ~= '-1'
if is_of_this_run(found.server) and found.term == term and not is_older then
  settle(run)
  if found.synced ~= synced then redis.call('HSET', KEYS[1], 'synced', synced) end
  local behind = tonumber(found['host:' .. host])
  local by_host = behind and clock - behind or 0
  return { 'ok', found.server, math.max(tonumber(found.reach), by_host) }
end
local raw = time[1] * 1000000 + time[2]
local offset, told = tonumber(found.offset) or 0, tonumber(found.last) or 0
-- The new record is to be newer than what any client knows, or each of them would begin another.
if is_older or not found.server then told = math.max(told, newest) end
if raw + offset <= told then offset = told + 1 - raw end
local began = digits(raw + offset)
local server, longest, reach, why = run .. ':' .. began, tonumber(found.longest) or 0, found.reach, found.why
local needed, using, since = found.needed, found.using, found.since
-- Another process, another term, or the data are gone. Nothing is missing only if all that was answered before was on the disk,
-- and was read from there; or if the same process goes on and was never a replica: it has another id since its first replica
-- came, or since it had none for an hour (`repl-backlog-ttl`).
local is_whole = found.server and not was_replica and found.term and not is_older
  and (is_of_this_run(found.server) or found.synced == '1' and synced == '1')
if not is_whole then
  longest = math.max(longest, tonumber(unknown))
  needed, using, since = digits(longest), '0', began
  -- A node of a cluster may have run for long without our keys.
  local is_elsewhere = not found.server and says('redis_mode') == 'cluster'
  reach = (was_replica or is_older or is_damaged or is_elsewhere) and '0' or digits(ran * 1000000)
  for field in pairs(found) do
    if string.sub(field, 1, 5) == 'host:' then redis.call('HDEL', KEYS[1], field) end
  end
  why = is_damaged and 'damaged' or not found.server and 'empty' or is_older and 'older' or was_replica and 'replica' or 'restarted'
end
-- As many of them as there is room for.
local before = string.sub(chain, 1, 1500)
if #before < #chain then before = string.match(before, '^(.*) ') end
redis.call('HSET', KEYS[1],
  'server', server,
  'term', term,
  'before', is_whole and before or '-',
  'offset', digits(offset),
  'last', began,
  'began', began,
  'synced', synced,
  'longest', digits(longest),
  'using', using,
  'since', since,
  'needed', needed,
  'reach', reach,
  'why', why,
  'epoch', found.epoch or digits(raw))
settle(run)
return { 'ok', server, tonumber(reach) }
