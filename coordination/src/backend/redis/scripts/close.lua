-- server, session
if not tick() then return { 'stranger' } end
-- One that is not there may be about to come, by a call that was given up.
if redis.call('EXISTS', base .. 'session:' .. ARGV[2]) == 0 then
  redis.call('SET', base .. 'closed:' .. ARGV[2], '', 'PX', 60000)
end
finish(ARGV[2])
return { 'ok' }
