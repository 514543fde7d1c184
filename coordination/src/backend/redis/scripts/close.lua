-- record, age, session
use_memory()
if not tick() then return { 'stranger' } end
-- One that is not there may be about to come, by a call that was given up.
if redis.call('EXISTS', base .. 'session:' .. ARGV[3]) == 0 then
  note_done('closed:' .. ARGV[3])
end
return { finish(ARGV[3]) and 'ok' or 'more' }
