-- ARGV: token, lease, the deadline that the key should have, or nothing, the mark of a renewal: nothing, kept or found,
-- and "only longer" if the lease is not to get shorter.
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
-- include deadline
-- include expires_at
-- include lease_anew
-- include refused
-- include found
-- include shortens
if holder ~= ARGV[1] or shortens(ARGV[2]) then return found(holder) end
local expected = (ARGV[3] or '') ~= '' and expires_at(ARGV[3])
if ARGV[4] == 'found' and ARGV[3] ~= '' and not expected then
    local before, off = deadline()
    expected = type(before) == 'number' and (before - ARGV[3] + off) % 256 <= 2 * off
end
local at = lease_anew(ARGV[2])
if not expected or type(at) ~= 'table' or at.err then return at end
local more = (ARGV[3] - at[1]) % 256
if (ARGV[4] or '') ~= '' and more > 0 then
    redis.pcall('PEXPIREAT', KEYS[1], at[1] + more)
    return (deadline())
end
return at[1]
