-- ARGV: from, to, lease, the deadline to insist on, or nothing, and "strict" if `to` is no next holder where it holds the
-- lock already.
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
-- include deadline
-- include expires_at
-- include lease_anew
-- include refused
-- include found
if holder == ARGV[1] and (ARGV[4] == '' or expires_at(ARGV[4])) then
    local set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    if set.err then return set end
    return (deadline())
end
if holder == ARGV[2] and not ARGV[5] then return lease_anew(ARGV[3]) end
return found(holder)
