-- Greets the server: finds out whether the server may have forgotten something since the namespace's record was written. If so,
-- begins a new record. Returns the record's name and its reach. Arguments (ARGV): record and age, which are not used here; `1`
-- if the server's settings make it sync its log for each write, if it has a log; how long a lease may be that is forgotten
-- without a trace; the name of the client's host's clock (empty: its processes share none), the time by that clock, and by the wall clock; the
-- name of the record that the client knows (empty: none), and the newest time in an answer that the client has received under
-- that record.
local syncs, unknown, host, clock, wall, known, newest = unpack(ARGV, 3, 9)
newest = tonumber(newest)
use_memory()
local time = redis.call('TIME')
-- The script itself asks the server about its state, although the client has asked before: since then, the server may have been
-- a replica.
local info = ''
for _, section in ipairs({ 'server', 'persistence', 'replication', 'cpu' }) do
  info = info .. redis.call('INFO', section) .. '\n'
end
local function says(name)
  return string.match(info, '\n' .. name .. ':([^\r\n]*)')
end
-- A replica refuses writes with this error, unless it may be written to (`replica-read-only no`). Then the script has to
-- refuse, because the master would know nothing of what the replica grants.
if says('role') ~= 'master' then return { err = 'READONLY this server has become a replica' } end
-- Whether all that the server has answered is in its log on the disk. False while the log is rewritten: if the log was turned
-- on just now, a restart before the end of the rewriting would read an older log.
local is_synced = syncs == '1' and says('aof_enabled') == '1'
  and says('aof_rewrite_in_progress') == '0' and says('aof_rewrite_scheduled') == '0'
local run, synced = says('run_id'), is_synced and '1' or '0'
-- The id that the server has chosen at random when it last became the master. By it, the script recognises whether the server
-- was a replica in between. The process's id would not show that, because the process goes on; nor would an offset of
-- replication, because that may be the same twice.
local term = says('master_replid')
-- The server has run for at least this long: the processor time of its main thread. Its uptime is not used, because it is
-- measured by the wall clock, which somebody may have set.
local ran = (tonumber(says('used_cpu_user_main_thread')) or 0) + (tonumber(says('used_cpu_sys_main_thread')) or 0)
-- A process that starts itself anew (`DEBUG RESTART`) keeps its processor time. So at most the uptime is used.
ran = math.max(0, math.min(ran, (tonumber(says('uptime_in_seconds')) or 0) - 1))
-- The fields of the namespace's record; empty if there is no record.
local found = {}
local fields = redis.call('HGETALL', KEYS[1])
for at = 1, #fields, 2 do found[fields[at]] = fields[at + 1] end
-- If somebody has changed the record's name or one of its numbers, the record is treated as missing. But those of its numbers
-- that are possible are still used below.
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
-- This record and the records before it, the newest first, each as its name, a comma, and its last time. Blanks separate the
-- records.
local chain = (found.server or '') .. ',' .. (found.last or '') .. ' ' .. (found.before or '-')
-- Whether these data are older than what the client knows. That is checked even if the record says that the log was complete:
-- after a restart with an old log, or with a log that was turned off for a while, it says so too.
local is_older = false
if known ~= '' and found.server then
  local _, at = string.find(chain, known .. ',', 1, true)
  if at then
    is_older = newest > (tonumber(string.match(chain, '^%d+', at + 1)) or 0)
  else
    -- The record that the client knows is not in the chain. Then these data are older if the oldest record in the chain began
    -- earlier than the client's record.
    is_older = tonumber(string.match(known, ':(%d+)')) > tonumber(string.match(chain, '.*:(%d+),'))
  end
end
-- If the process that wrote the record is not the one in `home`, the data were copied from another server, see `settle`.
local is_copy = found.server and string.match(found.server, '^[^:]*') ~= found.home
local was_replica = is_copy or says('second_repl_offset') ~= '-1'
if is_of_this_run(found.server) and found.term == term and not is_older then
  settle(run)
  if found.synced ~= synced then redis.call('HSET', KEYS[1], 'synced', synced) end
  -- The smaller difference counts: virtual machines that were resumed from one saved state have one name, and clocks that differ.
  local behind, by_wall = string.match(found['host:' .. host] or '', '^(%-?%d+) (%-?%d+)$')
  local by_host = behind and math.min(clock - behind, wall - by_wall) or 0
  return { 'ok', found.server, math.max(tonumber(found.reach), by_host) }
end
local raw = time[1] * 1000000 + time[2]
local offset, told = tonumber(found.offset) or 0, tonumber(found.last) or 0
-- The new record has to begin later than any time that a client knows. Otherwise these data would seem to be older to each such
-- client, and each would begin a new record.
if is_older or not found.server then told = math.max(told, newest) end
if raw + offset <= told then offset = told + 1 - raw end
local began = digits(raw + offset)
local server, longest, reach, why = run .. ':' .. began, tonumber(found.longest) or 0, found.reach, found.why
local needed, using, since = found.needed, found.using, found.since
-- A new record is needed, because the process or the term is another one, or the data are gone. Even so, nothing may be missing
-- (`is_whole`), in two cases. Either all that was answered before was on the disk, and was read from there. Or the same process
-- goes on and was never a replica: its term is another one just because its first replica came, or because it had no replica
-- for an hour (`repl-backlog-ttl`).
local is_whole = found.server and not was_replica and found.term and not is_older
  and (is_of_this_run(found.server) or found.synced == '1' and synced == '1')
if not is_whole then
  longest = math.max(longest, tonumber(unknown))
  needed, using, since = digits(longest), '0', began
  -- A node of a cluster may have run for long without our keys, so if there is no record, the time for which it has run says
  -- nothing about the reach.
  local is_elsewhere = not found.server and says('redis_mode') == 'cluster'
  reach = (was_replica or is_older or is_damaged or is_elsewhere) and '0' or digits(ran * 1000000)
  for field in pairs(found) do
    if string.sub(field, 1, 5) == 'host:' then redis.call('HDEL', KEYS[1], field) end
  end
  why = is_damaged and 'damaged' or not found.server and 'empty' or is_older and 'older' or was_replica and 'replica' or 'restarted'
end
-- By these fields enter_fast.lua takes it that quarantine is over for a client that knows the record which they name. A client that
-- has not heard of the new record yet still knows that one.
for field in pairs(found) do
  if string.sub(field, 1, 3) == 'up:' then redis.call('HDEL', KEYS[1], field) end
end
-- The chain of earlier records is cut to 1500 bytes, at the end of a record.
local before = string.sub(chain, 1, 1500)
if #before < #chain then before = string.match(before, '^(.*) ') end
-- The server looks for a field of a small hash from its beginning. So those that enter_fast.lua reads stand there, as they are
-- put into a hash that is new; longer texts come last.
redis.call('HSET', KEYS[1],
  'term', term,
  'last', began,
  'offset', digits(offset),
  'server', server,
  'began', began,
  'synced', synced,
  'longest', digits(longest),
  'using', using,
  'since', since,
  'needed', needed,
  'reach', reach,
  'why', why,
  'epoch', found.epoch or digits(raw),
  'before', is_whole and before or '-')
settle(run)
return { 'ok', server, tonumber(reach) }
