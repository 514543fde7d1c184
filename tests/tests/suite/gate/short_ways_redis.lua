-- Carries out a call in two namespaces that are alike: in the first by the short way where that takes it, in the second by
-- the long way only. Answers what the script says, whether it was by the short way, and how the two differ, if they do.
-- The server's clock stands still meanwhile, and what it says of itself stays the same.
--
-- what to do, then what it is told; `@record` stands for the record's name, and `@cleared` for that of the record under which a call
-- that asks for no quarantine was last let through. `raw` is a command, whose key is given without the namespace.
local what, arguments = ARGV[1], { unpack(ARGV, 2) }

local said = {}
local function say(command, ...)
  local name = table.concat({ command, ... }, ' ')
  said[name] = said[name] or redis.call(command, ...)
  return said[name]
end

-- A short way answers just the number, or just the status, where the long way answers a list that begins with the status.
local function whole(answer)
  if type(answer) == 'number' then return { 'ok', answer } end
  return type(answer) == 'string' and { answer } or answer
end

local function run(base, ways)
  local told = {}
  local given = {}
  for at, text in ipairs(arguments) do
    local field = text == '@record' and 'server' or text == '@cleared' and 'up:0'
    given[at] = field and redis.call('HGET', base .. 'clock', field) or text
  end
  if what == 'raw' then return redis.call(given[1], base .. given[2], unpack(given, 3)), told end
  local own = setmetatable({
    call = function(command, ...)
      if command == 'PUBLISH' then
        local channel, text = ...
        told[#told + 1] = string.sub(channel, #base + 1) .. ' ' .. text
      end
      if command == 'TIME' or command == 'INFO' then return say(command, ...) end
      return redis.call(command, ...)
    end,
  }, { __index = redis })
  for number, way in ipairs(ways) do
    local answer = way({ base .. 'clock' }, given, own)
    if answer then return whole(answer), told, #ways > number end
  end
end

local function shown(value)
  if type(value) == 'number' then return string.format('%.0f', value) end
  if type(value) ~= 'table' then return tostring(value) end
  local words = {}
  for at = 1, table.maxn(value) do words[at] = shown(value[at]) end
  return '[' .. table.concat(words, ' ') .. ']'
end

-- What the short ways need not note: how far the record reaches back.
local function is_left_out(key, field)
  return key == 'clock' and field == 'reach'
end

local readers = {
  string = function(key) return redis.call('GET', key) end,
  zset = function(key) return shown(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')) end,
  hash = function(key, name)
    local fields, words = redis.call('HGETALL', key), {}
    for at = 1, #fields, 2 do
      if not is_left_out(name, fields[at]) then words[#words + 1] = fields[at] .. '=' .. fields[at + 1] end
    end
    table.sort(words)
    return table.concat(words, ', ')
  end,
}

local function kept(base)
  local lines = {}
  for _, key in ipairs(redis.call('KEYS', base .. '*')) do
    local name = string.sub(key, #base + 1)
    local lasts = name ~= 'clock' and redis.call('PTTL', key) < 0 and ' for ever' or ''
    lines[#lines + 1] = name .. lasts .. ': ' .. readers[redis.call('TYPE', key).ok](key, name)
  end
  table.sort(lines)
  return table.concat(lines, '\n')
end

local is_first, first_told, is_short = run('{a}:', short[what] and { short[what], long[what] } or { long[what] })
local is_second, second_told = run('{b}:', { long[what] })
local function all(answer, told, base) return shown(answer) .. '\n' .. shown(told) .. '\n' .. kept(base) end
local one, other = all(is_first, first_told, '{a}:'), all(is_second, second_told, '{b}:')
return { shown(is_second), is_short and 1 or 0, one == other and '' or one .. '\n--- and not\n' .. other }
