-- ARGV: token, and the rest of its lease.
-- include deadline
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.err then return set end
if set then return (deadline()) end
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
local ttl = redis.pcall('PTTL', KEYS[1])
if holder ~= ARGV[1] then return holder and {string.sub(holder, 1, 257), ttl} end
if type(ttl) == 'number' and ttl >= 0 and ttl < tonumber(ARGV[2]) then
    redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
    return (deadline())
end
return {(deadline())}
