-- Removes those entries of a session that its client does not know of. A server that came back with older data, or has become
-- the master, may have entries that were removed before. Arguments (ARGV): record and age, which `tick` reads; session,
-- generation; the record under which the client made its list; then the ids of all entries that the client knows of. Answers
-- `more` if the client has to call again: entries are left, because the budget of this call is used up; or the list is older than
-- the record, so that entries of the client may be missing in it that were entered before the record began.
use_memory()
if not tick() then return { 'stranger' } end
local refused = admit(ARGV[3], ARGV[4], 'lease')
if refused then return { refused } end
if ARGV[5] ~= ARGV[1] then return { 'more' } end
local known = {}
for at = 6, #ARGV do known[ARGV[at]] = true end
for _, field in ipairs(redis.call('HKEYS', base .. 'session:' .. ARGV[3])) do
  local queue, entry = string.match(field, '^entry:(.*)/([^/]*)$')
  if queue and not known[entry] then
    local seq = place_of(queue, entry)
    -- An entry whose number is not below `began` was entered under the present record, perhaps after the client made its list.
    -- So it stays.
    if not seq or seq < began then
      if budget <= 0 then return { 'more' } end
      remove(queue, entry)
    end
  end
end
return { 'ok' }
