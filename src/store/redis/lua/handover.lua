-- ARGV: from, to, lease, the deadline to insist on, or nothing, and "strict" if `to` is no next holder where it holds the
-- lock already.
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
local any_deadline = (ARGV[4] or '') == ''
if holder == ARGV[1] and any_deadline then
    local set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    if set.err then return set end
    local at = redis.pcall('PEXPIRETIME', KEYS[1])
    if type(at) == 'number' then return at end
end
-- include deadline
-- include expires_at
-- include lease_anew
-- include refused
-- include found
if holder == ARGV[1] and (any_deadline or expires_at(ARGV[4])) then
    local set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    if set.err then return set end
    return (deadline())
end
if holder == ARGV[2] and not ARGV[5] then return lease_anew(ARGV[3]) end
return found(holder)
