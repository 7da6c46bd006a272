-- ARGV: token, and the deadline to insist on, or nothing.
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if holder == ARGV[1] and not ARGV[2] then return redis.pcall('DEL', KEYS[1]) end
-- include deadline
-- include expires_at
-- include refused
if holder == ARGV[1] and expires_at(ARGV[2]) then return redis.pcall('DEL', KEYS[1]) end
return refused() or 0
