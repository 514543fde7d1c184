-- Closes a session. Arguments (ARGV): record and age, which `tick` reads; session.
use_memory()
if not tick() then return { 'stranger' } end
-- If the client gave up a call that opens this session, that call may arrive after this one. The note makes it fail (`lost`).
note_done('closed:' .. ARGV[3])
return { finish(ARGV[3]) and 'ok' or 'more' }
