-- ARGV: token, lease, the deadline that the key should have if the token holds the lock, or nothing, "strict" if a token
-- that holds the lock is refused, and "only longer" if it is not to get a shorter lease. The SET comes first, because a
-- free lock is the usual case, and because a replica refuses it: a replica's view of the holder would be stale.
-- A grant whose deadline Redis does not return is taken back. If Redis refused the SET
-- for lack of memory, a token that holds the lock can still get a new lease.
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.ok then
    local at = redis.pcall('PEXPIRETIME', KEYS[1])
    if type(at) == 'number' then return at end
end
-- include deadline
-- include expires_at
-- include lease_anew
-- include shortens
if set and set.ok then
    local at = deadline()
    if type(at) ~= 'number' then redis.pcall('DEL', KEYS[1]) end
    return at
end
if set and not string.find(set.err, 'OOM', 1, true) then return set end
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if not holder then return set end
if holder ~= ARGV[1] or ARGV[4] == 'strict' or shortens(ARGV[2]) then
    return {string.sub(holder, 1, 257), redis.pcall('PTTL', KEYS[1])}
end
local expected = (ARGV[3] or '') ~= '' and expires_at(ARGV[3])
local at = lease_anew(ARGV[2])
if expected and type(at) == 'table' and not at.err then return at[1] end
return at
