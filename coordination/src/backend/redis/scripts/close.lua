-- record, age, session
use_memory()
if not tick() then return { 'stranger' } end
-- A call that opened it, and was given up, may come yet.
note_done('closed:' .. ARGV[3])
return { finish(ARGV[3]) and 'ok' or 'more' }
