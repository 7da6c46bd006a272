-- ARGV: token, and the rest of its lease. If Redis refused the SET for lack of memory, a token that holds the lock still
-- gets its lease.
-- include deadline
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.ok then return (deadline()) end
if set and not string.find(set.err, 'OOM', 1, true) then return set end
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if not holder then return set end
local ttl = redis.pcall('PTTL', KEYS[1])
if holder ~= ARGV[1] then return {string.sub(holder, 1, 257), ttl} end
if type(ttl) == 'number' and ttl >= 0 and ttl < tonumber(ARGV[2]) then
    redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
    return (deadline())
end
return {(deadline())}
